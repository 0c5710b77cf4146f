"""LangGraph as a contender: a graph of a model node and a tool node, called once for each turn."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from bench.contenders.driver import Turn
from bench.contenders.work import PAYLOAD, Work

__all__ = ("turns_of",)


def _added(known: list[Any], new: list[Any] | None) -> list[Any]:
    return [] if new is None else known + new


class _State(TypedDict):
    messages: Annotated[list[dict[str, str]], _added]
    results: Annotated[list[str], _added]


def turns_of(work: Work, checkpointer: Any) -> Turn:
    """Return what runs a turn of a thread: every superstep is stored before the next begins."""

    async def model(state: _State) -> dict[str, Any]:
        if not state["results"]:
            return {}
        # Results are dropped once they have been read, so that they do not add to a thread.
        return {"messages": [{"role": "assistant", "content": work.answer()}], "results": None}

    async def tool(given: dict[str, int]) -> dict[str, Any]:
        return {"results": [work.look(given["at"])]}

    def after_model(state: _State) -> Any:
        if state["messages"][-1]["role"] == "assistant":
            return END
        return [Send("tool", {"at": at}) for at in work.ask()]

    graph = StateGraph(_State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["tool", END])
    graph.add_edge("tool", "model")
    compiled = graph.compile(checkpointer=checkpointer)

    async def turn(name: str) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": name}}
        message = {"role": "user", "content": PAYLOAD}
        await compiled.ainvoke({"messages": [message]}, config, durability="sync")

    return turn
