"""Injects each kind of fault into a world, and undoes it again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.torture.cluster import fill
from tests.torture.scenario import TABLE, Fault
from tests.torture.world import Slot, World
from tests.worker_harness import MigrateProcess


def inject(world: World, fault: Fault) -> None:
    """Inject a fault, wait as long as it lasts, undo it; the world's log has the times."""
    world.say(f"{fault.kind} begins", **fault.args)
    DEEDS[fault.kind](world, fault.args)
    world.say(f"{fault.kind} ends")


def _slot(world: World, args: dict[str, Any]) -> Slot:
    return world.slots[args["worker"]]


def _end(slot: Slot, how: signal.Signals) -> None:
    """End the worker of a slot; the caller has the slot's lock."""
    worker = slot.worker
    if worker is None or worker.process.poll() is not None:
        return
    if how is signal.SIGKILL:
        worker.kill()
        return
    try:
        code = worker.stop()
    except AssertionError:
        slot.exits.append((-signal.SIGABRT, f"{worker.log.name} did not stop after SIGTERM; its log says where", True))
        return
    if code not in (0, -signal.SIGTERM):
        slot.exits.append((worker.process.returncode, f"after SIGTERM: {worker.text()[-300:]}", True))


def worker_kill(world: World, args: dict[str, Any]) -> None:
    """kill -9, and a new worker after a while."""
    slot = _slot(world, args)
    with slot.lock:
        _end(slot, signal.SIGKILL)
        world.stopping.wait(args["seconds"])
        world.start(slot)


def worker_kill_open(world: World, args: dict[str, Any]) -> None:
    """kill -9 while records of a transaction are written and its end is not; after some seconds in any case."""
    slot = _slot(world, args)
    until = time.monotonic() + args["seconds"]
    with slot.lock:
        worker = slot.worker
        if worker is not None:
            while worker.process.poll() is None and time.monotonic() < until and not world.stopping.is_set():
                worker.signal(signal.SIGSTOP)
                # It is still open at a second look, so its end was not already on the way.
                if world.open_records() and world.open_records():
                    break
                worker.signal(signal.SIGCONT)
                world.stopping.wait(0.003)
        _end(slot, signal.SIGKILL)
        world.start(slot)


def worker_freeze(world: World, args: dict[str, Any]) -> None:
    """SIGSTOP, perhaps beyond the session's timeout, then SIGCONT: the worker continues as a zombie."""
    slot = _slot(world, args)
    with slot.lock:
        worker = slot.worker
        if worker is None or worker.process.poll() is not None:
            return
        worker.signal(signal.SIGSTOP)
        world.stopping.wait(args["seconds"])
        worker.signal(signal.SIGCONT)


def worker_roll(world: World, args: dict[str, Any]) -> None:
    """SIGTERM and start, one after another."""
    for slot in list(world.slots):
        with slot.lock:
            if slot.wanted:
                _end(slot, signal.SIGTERM)
                world.start(slot)


def worker_come(world: World, args: dict[str, Any]) -> None:
    """Add a worker, for a while."""
    slot = Slot(len(world.slots))
    with slot.lock:
        world.slots.append(slot)
        world.start(slot)
    world.stopping.wait(args["seconds"] + 4)
    with slot.lock:
        slot.wanted = False
        _end(slot, signal.SIGTERM)


def worker_go(world: World, args: dict[str, Any]) -> None:
    """Remove a worker, for a while."""
    slot = _slot(world, args)
    with slot.lock:
        _end(slot, signal.SIGTERM)
        world.stopping.wait(args["seconds"])
        world.start(slot)


def state_lost(world: World, args: dict[str, Any]) -> None:
    """kill -9, and the worker's state folder is deleted."""
    slot = _slot(world, args)
    with slot.lock:
        _end(slot, signal.SIGKILL)
        for entry in _entries(world.state(slot)):
            shutil.rmtree(entry, ignore_errors=True)
        world.start(slot)


def _entries(folder: str) -> list[Path]:
    path = Path(folder)
    return [entry for entry in path.iterdir() if entry.is_dir()] if path.exists() else []


def worker_disk_full(world: World, args: dict[str, Any]) -> None:
    """Fill the worker's disk completely, for a while."""
    disk = world.disks.get(args["worker"])
    if disk is None:
        return
    filler = fill(disk)
    world.stopping.wait(args["seconds"] + 1)
    filler.unlink(missing_ok=True)


def worker_clock(world: World, args: dict[str, Any]) -> None:
    """Make all workers' wall clocks jump."""
    if world.clock is not None:
        world.clock.step(args["by_s"])


def coordinator_kill(world: World, args: dict[str, Any]) -> None:
    """kill -9, and a new coordinator."""
    if world.coordinators:
        world.coordinators[-1].kill()
        world.coordinate()


@contextlib.contextmanager
def _proxies(world: World, **settings: Any) -> Iterator[None]:
    for proxy in world.cluster.proxies:
        for name, value in settings.items():
            setattr(proxy, name, value)
    try:
        yield
    finally:
        for proxy in world.cluster.proxies:
            proxy.heal()


def net_slow(world: World, args: dict[str, Any]) -> None:
    """Delay every piece of data."""
    with _proxies(world, delay_s=args["delay_s"]):
        world.stopping.wait(args["seconds"])


def net_narrow(world: World, args: dict[str, Any]) -> None:
    """Let only few bytes a second pass."""
    with _proxies(world, bytes_per_s=args["bytes_per_s"]):
        world.stopping.wait(args["seconds"])


def net_dark(world: World, args: dict[str, Any]) -> None:
    """Let nothing pass, without any error."""
    with _proxies(world, dark=True):
        world.stopping.wait(args["seconds"])


def net_cut(world: World, args: dict[str, Any]) -> None:
    """Reset connections in the middle of the data."""
    for _ in range(args["times"]):
        for proxy in world.cluster.proxies:
            proxy.cut()
        world.stopping.wait(args["seconds"] / args["times"])


def broker_kill(world: World, args: dict[str, Any]) -> None:
    """kill -9, and a start after a while. With `in_sync`, only once no other broker is missing any more."""
    if not args.get("in_sync"):
        _restart(world, args, signal.SIGKILL)
        return
    # Where brokers start slowly, several kills may be due: only one of them finds all replicas in sync.
    with world.one_broker_less:
        world.until(world.cluster.in_sync, "all replicas are in sync")
        _restart(world, args, signal.SIGKILL)


def broker_restart(world: World, args: dict[str, Any]) -> None:
    """SIGTERM, and a start."""
    _restart(world, args, signal.SIGTERM)


def _restart(world: World, args: dict[str, Any], how: signal.Signals) -> None:
    node = world.cluster.nodes[args["node"]]
    with node.lock:
        node.end(how)
        world.stopping.wait(args["seconds"])
        node.launch()
    world.cluster.wait()


def broker_freeze(world: World, args: dict[str, Any]) -> None:
    """SIGSTOP for a while."""
    node = world.cluster.nodes[args["node"]]
    with node.lock:
        node.signal(signal.SIGSTOP)
        world.stopping.wait(args["seconds"])
        node.signal(signal.SIGCONT)


def broker_disk_full(world: World, args: dict[str, Any]) -> None:
    """Fill the broker's disk completely; then make room, and restart the broker if it has given up."""
    if not world.cluster.disks:
        world.notes.append("no disk of its own: the broker's disk was not filled")
        return
    node = world.cluster.nodes[args["node"]]
    with node.lock:
        filler = world.cluster.fill_disk(args["node"])
        world.stopping.wait(args["seconds"])
        filler.unlink(missing_ok=True)
    world.cluster.wait()


def nodes_roll(world: World, args: dict[str, Any]) -> None:
    """Restart the brokers, one after another."""
    for number in range(len(world.cluster.nodes)):
        _restart(world, {"node": number, "seconds": 0.0}, signal.SIGTERM)


def _split(world: World, args: dict[str, Any], others: list[int] | None) -> None:
    if not world.cluster.splits:
        world.notes.append("no network namespaces: brokers were not split")
        return
    with world.cluster.split(args["node"], others):
        world.stopping.wait(args["seconds"])


def split_pair(world: World, args: dict[str, Any]) -> None:
    """Isolate two brokers from each other."""
    _split(world, args, [args["other"]])


def split_peers(world: World, args: dict[str, Any]) -> None:
    """Isolate one broker from all others, but not from its clients."""
    _split(world, args, [n for n in range(len(world.cluster.nodes)) if n != args["node"]])


def split_all(world: World, args: dict[str, Any]) -> None:
    """Isolate one broker from everything."""
    _split(world, args, None)


def retention(world: World, args: dict[str, Any]) -> None:
    """Delete the part of the input that no window of a committed task reaches, with twice the longest window to
    spare. A table is needed from its beginning."""
    lanes = [lane for lane in world.lanes if not lane.topic.endswith(f".{TABLE}")]
    taken, cuts = dict(world.watch.taken), dict(world.watch.cuts)
    if len(taken) < len(world.lanes) or len(cuts) < len(world.lanes):
        return
    times = {
        record.value: record.row["at"] for record in world.known if record.row is not None and record.row["n"] >= 0
    }
    reached = []
    for lane in lanes:
        place = (world.stream(lane.topic), lane.partition)
        done = [
            v for offset, (_, v) in dict(world.delivered[place]).items() if offset < taken[lane.topic, lane.partition]
        ]
        reached.append(max((times[value] for value in done if value in times), default=0))
    # A task may have read far more than it has processed, while it produces pending results of spilled state.
    needed = min(*reached, *cuts.values()) - 4 * world.scenario.window_ms - 3 * world.scenario.disorder_ms - 1_500
    before: dict[tuple[str, int], int] = {}
    for lane in lanes:
        for offset, (_, value) in sorted(dict(world.delivered[world.stream(lane.topic), lane.partition]).items()):
            if value in times and times[value] >= needed:
                break
            before[lane.topic, lane.partition] = offset + 1
    world.say("deleting", records=sum(before.values()), needed=needed)
    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in before.items()]
    admin = AdminClient(world.client)  # its futures end only while it lives
    for tp, future in admin.delete_records(wanted, request_timeout=15).items():
        if (error := future.exception(30)) is not None:
            world.notes.append(f"records of {tp.topic}[{tp.partition}] were not deleted: {error}")


def topic_grows(world: World, args: dict[str, Any]) -> None:
    """Give an input topic one more partition."""
    world.grow(args["alias"])


def migrate(world: World, args: dict[str, Any]) -> None:
    """Request another plan; the verdict does not depend on whether the tasks agree."""
    started = MigrateProcess(world.case, args["plan"], args["strategy"], "--wait", "--timeout", "10s")  # type: ignore[arg-type]
    world.migrations.append(started)
    done = threading.Event()

    def follow() -> None:
        started.process.wait()
        done.set()

    threading.Thread(target=follow, daemon=True).start()
    while not done.wait(0.2) and not world.stopping.is_set():
        continue


def register(world: World, args: dict[str, Any]) -> None:
    """Register queries."""
    world.register(args["names"], from_now=args["from_now"])


def replace(world: World, args: dict[str, Any]) -> None:
    """Register a query under the name of another one, which ends then."""
    world.register([args["sink"]], from_now=args["from_now"], by=args["by"])


def drop(world: World, args: dict[str, Any]) -> None:
    """Drop a query."""
    world.drop(args["name"])


DEEDS: dict[str, Callable[[World, dict[str, Any]], None]] = {
    "worker-kill": worker_kill,
    "worker-kill-open": worker_kill_open,
    "worker-freeze": worker_freeze,
    "worker-roll": worker_roll,
    "worker-come": worker_come,
    "worker-go": worker_go,
    "state-lost": state_lost,
    "worker-disk-full": worker_disk_full,
    "worker-clock": worker_clock,
    "coordinator-kill": coordinator_kill,
    "net-slow": net_slow,
    "net-narrow": net_narrow,
    "net-dark": net_dark,
    "net-cut": net_cut,
    "retention": retention,
    "topic-grows": topic_grows,
    "broker-kill": broker_kill,
    "broker-restart": broker_restart,
    "broker-freeze": broker_freeze,
    "broker-disk-full": broker_disk_full,
    "node-kill": broker_kill,
    "node-restart": broker_restart,
    "node-freeze": broker_freeze,
    "nodes-roll": nodes_roll,
    "split-pair": split_pair,
    "split-peers": split_peers,
    "split-all": split_all,
    "migrate": migrate,
    "register": register,
    "replace": replace,
    "drop": drop,
}
