"""``python -m dex_agents_dex.emulator``: runs the emulator until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from dex_agents.errors import StoreError
from dex_agents_dex.emulator.server import DexEmulator


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the emulator; return the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        emulator = DexEmulator(
            options.port,
            host=options.host,
            store=options.store,
            time_scale=options.time_scale,
            dispatch_wait=options.dispatch_wait,
        )
        asyncio.run(_serve(emulator))
    except (ValueError, OSError, StoreError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


async def _serve(emulator: DexEmulator) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with emulator:
        sys.stdout.write(f"listening on {emulator.address}\n")
        sys.stdout.flush()
        await stop.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dex_agents_dex.emulator",
        description="An emulator of the Dex wire protocol for tests. It is not the Dex server.",
    )
    parser.add_argument("--port", type=int, default=8801, help="0 picks a free port")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--store", default="", help="sqlite:///PATH keeps flows across a kill")
    parser.add_argument("--time-scale", type=float, default=1.0, help="multiplies delays")
    parser.add_argument(
        "--dispatch-wait", type=float, default=10.0, help="seconds a task waits for a pull worker"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
