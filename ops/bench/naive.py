"""The naive baseline: a streaming window join such as a programmer writes in an afternoon, in dicts and lists.

    python -m ops.bench.naive --window 10000 --out results.jsonl A=a.jsonl B=b.jsonl C=c.jsonl

Natural join on equally named columns (except `id` and `ts`), symmetric, without intermediate results. Each
event, in order of time, is entered into a dict per index and looks for partners stream after stream, by all
columns that they share with the streams found so far. Expired events leave through a queue per stream.
Files are merged by `ts`. Prints one line of JSON with counts and seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import orjson

Event = dict[str, int]
Index = dict[object, list[Event]]


class NaiveJoin:
    """The join over `streams`, which has the join columns by stream."""

    def __init__(self, streams: Mapping[str, Sequence[str]], window_ms: int) -> None:
        self.window_ms = window_ms
        self._place = {stream: place for place, stream in enumerate(streams)}
        self._alive: dict[str, deque[Event]] = {stream: deque() for stream in streams}
        self._indexes: dict[tuple[str, tuple[str, ...]], Index] = {}
        self._bound: dict[str, list[int]] = {}
        self._steps = {stream: self._order(streams, stream) for stream in streams}
        self._own = {
            stream: [
                (itemgetter(*columns), index) for (name, columns), index in self._indexes.items() if name == stream
            ]
            for stream in streams
        }

    def _order(self, streams: Mapping[str, Sequence[str]], first: str) -> list[tuple[list[tuple[int, str]], Index]]:
        """Where a new event of `first` looks for partners: for each next stream, the columns that make its key
        (as position among the bound events, column) and its index."""
        bound = [first]
        steps: list[tuple[list[tuple[int, str]], Index]] = []
        while len(bound) < len(streams):
            keys = {
                stream: [c for c in streams[stream] if any(c in streams[b] for b in bound)]
                for stream in streams
                if stream not in bound
            }
            stream = max(keys, key=lambda name: (len(keys[name]), -self._place[name]))
            columns = keys[stream]
            origins = [(next(i for i, b in enumerate(bound) if c in streams[b]), c) for c in columns]
            steps.append((origins, self._indexes.setdefault((stream, tuple(columns)), {})))
            bound.append(stream)
        self._bound[first] = [bound.index(stream) for stream in streams]
        return steps

    def push(self, stream: str, event: Event) -> list[tuple[Event, ...]]:
        """The results that an event completes, in the order of the streams; events must arrive in order of time."""
        oldest = event["ts"] - self.window_ms
        for name, alive in self._alive.items():
            while alive and alive[0]["ts"] < oldest:
                gone = alive.popleft()
                for key_of, index in self._own[name]:
                    key = key_of(gone)
                    bucket = index[key]
                    if len(bucket) == 1:
                        del index[key]
                    else:
                        del bucket[0]
        self._alive[stream].append(event)
        for key_of, index in self._own[stream]:
            index.setdefault(key_of(event), []).append(event)
        found: list[tuple[Event, ...]] = [(event,)]
        for origins, index in self._steps[stream]:
            if len(origins) == 1:
                ((i, c),) = origins
                found = [(*part, other) for part in found for other in index.get(part[i][c], ())]
            elif len(origins) == 2:
                (i, c), (j, d) = origins
                found = [(*part, other) for part in found for other in index.get((part[i][c], part[j][d]), ())]
            else:
                found = [
                    (*part, other) for part in found for other in index.get(tuple([part[i][c] for i, c in origins]), ())
                ]
            if not found:
                return found
        order = self._bound[stream]
        return [tuple([part[i] for i in order]) for part in found]


def read_merged(paths: Mapping[str, str]) -> Iterator[tuple[str, Event]]:
    """The events of all files in order of time; ties in the order of the files."""

    def read(place: int, name: str, path: str) -> Iterator[tuple[int, int, str, Event]]:
        with open(path, "rb") as lines:
            for line in lines:
                event = orjson.loads(line)
                yield event["ts"], place, name, event

    files = [read(place, name, path) for place, (name, path) in enumerate(paths.items())]
    for _, _, name, event in heapq.merge(*files, key=itemgetter(0, 1)):
        yield name, event


def join_all(join: NaiveJoin, events: Iterable[tuple[str, Event]]) -> Iterator[tuple[Event, ...]]:
    """All results, in order of time."""
    for stream, event in events:
        yield from join.push(stream, event)


def main() -> None:
    """The program over files."""
    parser = argparse.ArgumentParser(description="a naive window join over JSON lines")
    parser.add_argument("--window", type=int, required=True, help="window in ms")
    parser.add_argument("--out", required=True)
    parser.add_argument("sources", nargs="+", metavar="STREAM=FILE")
    arguments = parser.parse_args()
    paths = dict(source.split("=", 1) for source in arguments.sources)
    began = time.perf_counter()
    streams = {}
    for name, path in paths.items():
        with open(path, "rb") as lines:
            streams[name] = [key for key in orjson.loads(next(lines)) if key not in ("id", "ts")]
    join = NaiveJoin(streams, arguments.window)
    labels = [name.lower() for name in streams]
    results = 0
    with open(arguments.out, "wb") as out:
        for result in join_all(join, read_merged(paths)):
            row = {label: event["id"] for label, event in zip(labels, result, strict=True)}
            row["_ts"] = max([event["ts"] for event in result])
            out.write(orjson.dumps(row) + b"\n")
            results += 1
    json.dump({"results": results, "seconds": time.perf_counter() - began}, sys.stdout)


if __name__ == "__main__":
    main()
