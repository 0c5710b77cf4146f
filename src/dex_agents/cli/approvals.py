"""The daily tools that answer the question whether a tool call may run."""

from __future__ import annotations

import asyncio

import click

from dex_agents.cli.errors import CommandError
from dex_agents.cli.sessions import acknowledge, described_call, json_option
from dex_agents.cli.stores import open_session, store_option
from dex_agents.records import AgentInterrupt

__all__ = ("approve", "reject")


@click.command()
@click.argument("session")
@click.argument("interrupt_id", required=False)
@store_option
@json_option
def approve(session: str, interrupt_id: str | None, store: str, *, as_json: bool) -> None:
    """Let a waiting tool call run; without an ID, the only one that waits."""
    interrupt = asyncio.run(_resolve(store, session, interrupt_id, approved=True))
    acknowledge(
        f"Approved: {described_call(interrupt)}",
        as_json=as_json,
        session_id=session,
        interrupt_id=interrupt.interrupt_id,
        approved=True,
    )


@click.command()
@click.argument("session")
@click.argument("interrupt_id", required=False)
@click.option("--message", metavar="TEXT", help="What the model reads about it.")
@store_option
@json_option
def reject(
    session: str, interrupt_id: str | None, message: str | None, store: str, *, as_json: bool
) -> None:
    """Keep a waiting tool call from running; without an ID, the only one that waits."""
    interrupt = asyncio.run(_resolve(store, session, interrupt_id, approved=False, message=message))
    acknowledge(
        f"Rejected: {described_call(interrupt)}",
        as_json=as_json,
        session_id=session,
        interrupt_id=interrupt.interrupt_id,
        approved=False,
    )


async def _resolve(
    store: str,
    session: str,
    interrupt_id: str | None,
    *,
    approved: bool,
    message: str | None = None,
) -> AgentInterrupt:
    async with open_session(store, session) as client:
        pending = (await client.get_agent_snapshot(session)).pending_interrupts
        interrupt = _pick(session, pending, interrupt_id)
        is_resolved = await client.resolve_interrupt(
            session, interrupt.interrupt_id, approved=approved, rejection_message=message
        )
    if not is_resolved:
        raise CommandError(
            f"Interrupt {interrupt.interrupt_id!r} is not pending any more: "
            "somebody was faster, or its deadline has passed."
        )
    return interrupt


def _pick(session: str, pending: list[AgentInterrupt], interrupt_id: str | None) -> AgentInterrupt:
    if not pending:
        raise CommandError(f"Nothing waits for an approval in session {session!r}.")
    found = [each for each in pending if interrupt_id in (None, each.interrupt_id)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {each.interrupt_id}  {described_call(each)}" for each in pending)
    if interrupt_id is None:
        raise CommandError(f"Several tool calls wait for an approval; name one:{listed}")
    raise CommandError(f"Interrupt {interrupt_id!r} is not pending. What waits:{listed}")
