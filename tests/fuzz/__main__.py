"""python -m tests.fuzz: the fuzz test for as long as one likes, or some of its episodes again."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.fuzz.run import OVERRIDES, Failed, Fuzz, new_seed
from tests.support.broker import BrokerProcess


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all frames (default: a new one)")
    parser.add_argument("--frames", type=int, help="stop after so many frames")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="start at this episode (connection)")
    parser.add_argument("--episodes", type=int, default=0, help="stop after so many episodes")
    parser.add_argument(
        "--data-dir", type=Path, help="of the broker (default: a temporary one, removed when all is well)"
    )
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="a setting of the broker")
    arguments = parser.parse_args()
    seed = new_seed() if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    folder = arguments.data_dir or Path(tempfile.mkdtemp(prefix="pybroker-fuzz-"))
    try:
        overrides = OVERRIDES | dict(each.split("=", 1) for each in arguments.override)
        with BrokerProcess(folder / "data", overrides=overrides) as broker:
            fuzz = Fuzz(broker, seed)
            print(
                fuzz.run(
                    frames=arguments.frames,
                    seconds=arguments.seconds,
                    first=arguments.first,
                    episodes=arguments.episodes,
                )
            )
    except Failed as failed:
        print(f"{failed}\nthe broker's directory and log: {folder}")
        return 1
    if arguments.data_dir is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
