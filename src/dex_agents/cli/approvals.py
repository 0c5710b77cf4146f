"""The daily tools that answer the question whether a tool call may run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import click

from dex_agents.cli.errors import CommandError
from dex_agents.cli.sessions import acknowledge, json_option
from dex_agents.cli.showing import described_call
from dex_agents.cli.standing import wait_for_worker
from dex_agents.cli.steps import answer_of
from dex_agents.cli.stores import open_session, store_option, typed_command
from dex_agents.client import AgentSessionClient
from dex_agents.records import AgentEventType, AgentInterrupt

__all__ = ("approve", "reject")


@click.command()
@click.argument("session")
@click.argument("interrupt_id", required=False)
@store_option
@json_option
def approve(session: str, interrupt_id: str | None, store: str, *, as_json: bool) -> None:
    """Let a waiting tool call run; without an ID, the only one that waits."""
    _answer(store, session, interrupt_id, approved=True, as_json=as_json)


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
    _answer(store, session, interrupt_id, approved=False, message=message, as_json=as_json)


def _answer(
    store: str,
    session: str,
    interrupt_id: str | None,
    *,
    approved: bool,
    as_json: bool,
    message: str | None = None,
) -> None:
    async def run() -> tuple[AgentInterrupt, str]:
        async with open_session(store, session) as client:
            try:
                interrupt = await _pick(client, session, interrupt_id)
                await _resolve(client, session, interrupt, approved=approved, message=message)
            except CommandError as error:
                look = typed_command(store, "show", session)
                raise CommandError(f"{error}\nTo see how the session stands: {look}") from error
            return interrupt, "" if as_json else await wait_for_worker(client, session, store)

    interrupt, advice = asyncio.run(run())
    acknowledge(
        f"{'Approved' if approved else 'Rejected'}: {described_call(interrupt)}",
        advice,
        as_json=as_json,
        session_id=session,
        interrupt_id=interrupt.interrupt_id,
        approved=approved,
    )


async def _resolve(
    client: AgentSessionClient,
    session: str,
    interrupt: AgentInterrupt,
    *,
    approved: bool,
    message: str | None,
) -> None:
    is_resolved = await client.resolve_interrupt(
        session, interrupt.interrupt_id, approved=approved, rejection_message=message
    )
    if not is_resolved:
        raise CommandError(
            f"Interrupt {interrupt.interrupt_id!r} is not pending any more: "
            "somebody was faster, or its deadline has passed."
        )


async def _pick(
    client: AgentSessionClient, session: str, interrupt_id: str | None
) -> AgentInterrupt:
    """Return the interrupt that is meant, or say why there is none to answer."""
    status = (await client.describe_session(session)).status
    if status != "running":
        raise CommandError(f"Session {session!r} is {status}: none of its tool calls will run.")
    pending = (await client.get_agent_snapshot(session)).pending_interrupts
    found = [each for each in pending if interrupt_id in (None, each.interrupt_id)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {each.interrupt_id}  {described_call(each)}" for each in pending)
    if interrupt_id is None and pending:
        raise CommandError(f"Several tool calls wait for approval; name one:{listed}")
    answers = await _past_answers(client, session)
    if interrupt_id is None:
        last = f"; {[*answers.values()][-1]}" if answers else ""
        raise CommandError(f"Nothing waits for approval in session {session!r}{last}.")
    if interrupt_id in answers:
        raise CommandError(f"Interrupt {interrupt_id!r} is answered: {answers[interrupt_id]}.")
    what = f"What waits:{listed}" if pending else "Nothing waits."
    raise CommandError(f"Interrupt {interrupt_id!r} is not pending. {what}")


async def _past_answers(client: AgentSessionClient, session: str) -> dict[str, str]:
    """Return the answer to each interrupt of which the session's events still tell."""
    tools: dict[str, str] = {}
    answers: dict[str, str] = {}
    async with aclosing(client.follow_events(session, follow=False)) as events:
        async for each in events:
            payload = each.event.payload
            if each.event.type == AgentEventType.INTERRUPT_RAISED:
                name = tools[payload["interrupt_id"]] = payload["tool_name"]
                answers[payload["interrupt_id"]] = f"{name} is already approved or rejected"
            elif each.event.type == AgentEventType.INTERRUPT_RESOLVED:
                name = tools.get(payload["interrupt_id"], "the tool call")
                answers[payload["interrupt_id"]] = f"{name} is already {answer_of(payload)}"
    return answers
