"""Stands in for ``dexcli``: the same command line, but the server inside is the emulator.

`install` makes a program of this file. ``STAND_IN`` in its environment makes it
misbehave: ``exits`` at once, ``mute`` (never answers) or ``stubborn`` (does not stop).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.json_format import MessageToDict


def install(folder: Path) -> Path:
    """Put an executable ``dexcli`` and its ``dex-server-zd`` into a folder; return the former."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).read_text()
    for name, text in (("dexcli", f"#!{sys.executable}\n{source}"), ("dex-server-zd", "#!/bin/sh")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)
    return folder / "dexcli"


def main() -> int:
    parser = argparse.ArgumentParser(prog="dexcli", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    dev = commands.add_parser("dev", allow_abbrev=False)
    dev.add_argument("--engine", choices=("zd", "temporal"), required=True)
    dev.add_argument("--bind-address", default="127.0.0.1")
    dev.add_argument("--dex-port", type=int, default=8801)
    dev.add_argument("--web-port", type=int, default=8802)
    dev.add_argument("--open", choices=("true", "false"), default="true")
    dev.set_defaults(run=run_dev)
    flow = commands.add_parser("flow").add_subparsers(required=True)
    history = flow.add_parser("history", allow_abbrev=False)
    history.add_argument("flow_id")
    history.add_argument("--all", action="store_true")
    history.add_argument("--no-hydrate", action="store_true")
    history.add_argument("--server", default="127.0.0.1:8801")
    history.add_argument("--output", choices=("json", "table"), default="json")
    history.set_defaults(run=run_history)
    options = parser.parse_args()
    return int(options.run(options))


def run_dev(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, with a server process of its own."""
    told = {**vars(options), "server": os.environ["DEX_SERVER_ZD_BINARY"]}
    data = Path.home() / ".dex"
    data.mkdir()
    (data / "told.json").write_text(json.dumps(told, default=str))
    sys.stdout.write(f"starting on port {options.dex_port}\n")
    sys.stdout.flush()
    behaviour = os.environ.get("STAND_IN", "")
    if behaviour == "exits":
        sys.stderr.write("the disk is full\n")
        return 3
    if behaviour == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [sys.executable, "-m", "dex_agents_dex.emulator", f"--port={options.dex_port}"]
    if behaviour == "mute":
        command = ["sleep", "600"]
    server = subprocess.Popen(command)
    try:
        while behaviour == "stubborn":
            signal.pause()
        return server.wait()
    except KeyboardInterrupt:
        return server.wait()


def run_history(options: argparse.Namespace) -> int:
    """Print a flow's history as JSON."""
    try:
        printed = asyncio.run(history_of(options.server, options.flow_id))
    except grpc.RpcError as error:
        sys.stderr.write(json.dumps({"operation": "flow history", "code": error.code().name}))
        return 1
    sys.stdout.write(json.dumps(printed))
    return 0


async def history_of(address: str, flow_id: str) -> dict:
    """Return all pages of a flow's history."""
    events = []
    async with grpc.aio.insecure_channel(address) as channel:
        service = dex_pb2_grpc.FlowServiceStub(channel)
        summary = await service.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=flow_id))
        run_id = summary.flow_execution_id.run_id
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        while True:
            page = await service.GetHistoryEvents(request)
            events += [natural(event) for event in page.events]
            if not page.next_page_token:
                return {"flowId": flow_id, "runId": run_id, "events": events}
            request.next_page_token = page.next_page_token


def natural(event: pb.FlowHistoryEvent) -> dict:
    """Return an event as dexcli prints it: its kind as a type, beside its payload."""
    fields = MessageToDict(event)
    kind = str(event.WhichOneof("payload"))
    payload = fields.pop(pb.FlowHistoryEvent.DESCRIPTOR.fields_by_name[kind].json_name)
    words = "".join(word.title() for word in kind.split("_"))
    return {
        "eventId": fields["eventId"],
        "eventTime": fields["eventTime"],
        "type": words,
        "payload": payload,
    }


if __name__ == "__main__":
    sys.exit(main())
