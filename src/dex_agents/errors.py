"""Every error that dex-agents raises on purpose, under one root.

Constructors take data and build the sentence, so that a message always names
the thing that was wrong and the way out. Where a caller would naturally catch
a built-in (``LookupError``, ``ValueError``), the error is one of those too.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = (
    "BackendNotFoundError",
    "DexAgentsError",
    "EncodingError",
    "FlowAlreadyStartedError",
    "FlowDefinitionError",
    "FlowIdError",
    "FlowNotActiveError",
    "FlowNotFoundError",
    "MissingExtraError",
    "NotLoadedError",
    "RpcLockConflictError",
    "RunnerContractError",
    "StaleAttemptError",
    "StoreCorruptError",
    "StoreError",
    "StoreForeignError",
    "StoreLostError",
    "StoreNewerError",
    "StoreUnavailableError",
    "StoredRecordError",
    "StreamPositionError",
    "UndeclaredError",
    "UndeclaredStepError",
)


class DexAgentsError(Exception):
    """The root of every error that dex-agents raises on purpose."""


class EncodingError(DexAgentsError, ValueError):
    """A value cannot be stored as JSON and come back equal."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be stored: {reason}")
        self.what = what
        self.reason = reason


class FlowDefinitionError(DexAgentsError, ValueError):
    """A FlowTable is wrong; the message lists everything that is wrong with it."""

    def __init__(self, flow_type: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"- {problem}" for problem in self.problems)
        super().__init__(f"Flow {flow_type!r} is not a valid table:\n{listed}")


class NotLoadedError(DexAgentsError, LookupError):
    """A handler read a map, map instance or channel that its row does not load."""

    def __init__(self, reader: str, name: str) -> None:
        super().__init__(
            f"{reader} read {name}, which it does not load. "
            "Add it to the loads of its StepOptions or Rpc row."
        )


class UndeclaredError(DexAgentsError, LookupError):
    """Something used a row that its FlowTable does not declare."""

    def __init__(self, reader: str, name: str) -> None:
        super().__init__(
            f"{reader} used {name}, which its FlowTable does not declare. Add it to the table."
        )


class UndeclaredStepError(DexAgentsError, ValueError):
    """A decision named a Step that the deciding row does not declare as a next Step."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(
            f"{source} may not go to {target}. Add {target} to its next_steps, or go elsewhere."
        )


class FlowIdError(DexAgentsError, ValueError):
    """A flow cannot have this ID on every backend."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(
            f"{flow_id!r} cannot be a session ID: it must not be blank, nor hold '/', '$', ':', "
            "control characters or lone surrogates."
        )


class FlowAlreadyStartedError(DexAgentsError):
    """A flow with this ID exists, running or closed."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(f"Session {flow_id!r} was already started. Choose another ID.")


class FlowNotFoundError(DexAgentsError, LookupError):
    """No flow has this ID."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(f"There is no session {flow_id!r}. Start it first, or check the ID.")


class FlowNotActiveError(DexAgentsError):
    """The flow is closed; it can be read, but nothing can be changed."""

    def __init__(self, flow_id: str, status: str) -> None:
        super().__init__(
            f"Session {flow_id!r} is {status}. It stays readable; start another to go on."
        )
        self.status = status


class StaleAttemptError(DexAgentsError):
    """A result came from an attempt that is no longer the current one, and was refused."""

    def __init__(self, step_execution_id: str, attempt: int | None = None) -> None:
        which = "An attempt" if attempt is None else f"Attempt {attempt}"
        super().__init__(
            f"{which} of {step_execution_id} is no longer the current one. "
            "Its result was refused and changed nothing."
        )


class StreamPositionError(DexAgentsError, ValueError):
    """A Stream cannot be read from a position that it never gave out."""

    def __init__(self, position: str) -> None:
        super().__init__(f"{position!r} is no position of a Stream. Pass one that was read.")


class RpcLockConflictError(DexAgentsError):
    """An RPC could not get a lock, because a running Step holds it. Trying again is safe."""

    def __init__(self, rpc: str, attribute: str) -> None:
        super().__init__(f"RPC {rpc} cannot lock {attribute}: a Step holds it. Try again.")


class RunnerContractError(DexAgentsError):
    """A runner broke the contract of AgentFrameworkRunner."""


class StoreError(DexAgentsError):
    """A store cannot do what was asked of it."""


class StoreUnavailableError(StoreError):
    """The store refused a read or a write for now: disk full, locked, or an I/O error."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The store {path} cannot be used: {reason}. Nothing was half-written. "
            "Mend the cause; what was not acknowledged can be sent again."
        )


class StoreLostError(StoreUnavailableError):
    """The store's file was deleted or replaced while it was open; nothing more can be kept."""

    def __init__(self, path: str, lost: str) -> None:
        super().__init__(
            path,
            f"{lost} was deleted or replaced while it was open, so what is written now "
            "would be lost. End every process that has it open; then put it back, or remove "
            "its -wal and -shm files too and start with another",
        )


class StoredRecordError(StoreError, ValueError):
    """Stored bytes do not hold the record that their row declares."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"The stored {what} cannot be read: {reason}")


class StoreCorruptError(StoreError):
    """The store's file is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The store {path} is damaged ({reason}). "
            "Restore it from a backup, or name another file."
        )


class StoreForeignError(StoreError):
    """The store's file belongs to another program. It was left untouched."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is not a dex-agents store: {reason}. It was left untouched; name another file."
        )


class StoreNewerError(StoreError):
    """The store was written by a newer dex-agents. It was left untouched."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"The store {path} has schema version {found}; this dex-agents knows up to {known}. "
            "It was left untouched. Upgrade dex-agents."
        )


class BackendNotFoundError(DexAgentsError, LookupError):
    """No installed distribution offers a backend of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is no backend {name!r}. Installed: {', '.join(sorted(known)) or 'none'}."
        )


class MissingExtraError(DexAgentsError, ImportError):
    """Something needs an optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'dex-agents[{extra}]'.")
        self.extra = extra
