"""A flow as data: rows of Steps, RPCs, Attributes, Channels and a Stream, with plain functions.

A table knows no engine. The Dex backend compiles it to a Dex Flow, the local
executor interprets it over a store, and all of them keep the same semantics.
"""

from __future__ import annotations

from dex_agents.table.facts import (
    AttemptFacts,
    Measurement,
    Observation,
    Stretch,
    StretchEnd,
)
from dex_agents.table.flow_table import FlowTable
from dex_agents.table.persistence import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelCondition,
    ChannelMap,
    Loadable,
    PersistenceRow,
    Stream,
)
from dex_agents.table.steps import (
    CloseKind,
    Condition,
    DataContext,
    Decision,
    Movement,
    RecoveryError,
    RetryPolicy,
    Rpc,
    RpcContext,
    RpcResult,
    Step,
    StepContext,
    StepOptions,
    Timer,
    Wait,
)

__all__ = (
    "AttemptFacts",
    "Attribute",
    "AttributeMap",
    "Channel",
    "ChannelCondition",
    "ChannelMap",
    "CloseKind",
    "Condition",
    "DataContext",
    "Decision",
    "FlowTable",
    "Loadable",
    "Measurement",
    "Movement",
    "Observation",
    "PersistenceRow",
    "RecoveryError",
    "RetryPolicy",
    "Rpc",
    "RpcContext",
    "RpcResult",
    "Step",
    "StepContext",
    "StepOptions",
    "Stream",
    "Stretch",
    "StretchEnd",
    "Timer",
    "Wait",
)
