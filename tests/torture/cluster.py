"""Runs one broker, or a cluster of three in KRaft combined mode, and kills, stops, freezes and isolates its nodes.

Each node has two listeners for clients: a direct one, for the trial itself, and one whose address leads through
a `Proxy`, for workers. Three nodes live in network namespaces on a bridge of their own, so that a split is like one
in a real network: packets vanish without any error. Where namespaces are not permitted all nodes share the loopback
address, and there are no splits (`Cluster.splits`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from services.broker.background import free_port
from services.broker.broker import answers
from services.broker.java import find_java
from services.broker.kafka_jars import KAFKA, LOG_SETTINGS
from services.broker.settings import HOST, SINGLE_NODE_SETTINGS
from tests.torture.proxy import Proxy

START_S = 120.0
STOP_S = 30.0
DISK = "1g"
"""Size of the memory file system that holds a node's log where it is to be filled."""

SETTINGS = {
    **SINGLE_NODE_SETTINGS,
    # So that sessions of workers can expire within a short trial.
    "group.min.session.timeout.ms": "1000",
}

REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    # The in-sync replicas shrink within a trial when a follower is gone.
    "replica.lag.time.max.ms": "4000",
}


class Node:
    """One broker process."""

    def __init__(self, number: int, folder: Path, heap: str, host: str, namespace: str, proxy_port: int) -> None:
        self.number = number
        self.folder = folder
        self.host = host
        self.namespace = namespace
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.RLock()
        ports: list[int] = []
        while len(ports) < 3:
            ports.append(free_port(*ports))
        self.port, self.proxied_port, self.controller_port = ports if not namespace else (9092, 9094, 9093)
        self.proxy_port = proxy_port
        self._heap = heap
        folder.mkdir(parents=True)

    @property
    def bootstrap(self) -> str:
        """The address of the direct listener."""
        return f"{self.host}:{self.port}"

    def configure(self, voters: str, nodes: int) -> None:
        """Write the settings."""
        listeners = {"PLAINTEXT": self.port, "PROXIED": self.proxied_port, "CONTROLLER": self.controller_port}
        values = {
            **SETTINGS,
            **(REPLICATED if nodes > 1 else {}),
            "node.id": str(self.number),
            "listeners": ",".join(f"{name}://{self.host}:{port}" for name, port in listeners.items()),
            "advertised.listeners": f"PLAINTEXT://{self.host}:{self.port},PROXIED://{HOST}:{self.proxy_port}",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "controller.quorum.voters": voters,
            "log.dirs": str(self.folder / "log"),
        }
        (self.folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in values.items()))

    def format(self, cluster_id: str) -> None:
        """Give an empty folder its cluster id."""
        command = self._java("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config")
        command.append(str(self.folder / "server.properties"))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def launch(self) -> None:
        """Start the process; `Cluster.wait` waits until it answers."""
        with self.lock, (self.folder / "jvm.log").open("ab") as out:
            if self.alive():
                return
            command = self._java("kafka.Kafka", str(self.folder / "server.properties"))
            if self.namespace:
                command = ["ip", "netns", "exec", self.namespace, *command]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env={**os.environ, "MALLOC_ARENA_MAX": "2"},
                start_new_session=True,
            )

    def _java(self, main: str, *arguments: str) -> list[str]:
        java = find_java()
        jars = KAFKA.files(java, lambda _: None)
        return [
            *(str(java), f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            *("-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
            *(f"-Dlog4j2.configurationFile={LOG_SETTINGS}", f"-Dweir.broker.log={self.folder / 'broker.log'}"),
            *("-cp", f"{jars}/*", main, *arguments),
        ]

    def alive(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self.process is not None and self.process.poll() is None

    def end(self, how: signal.Signals) -> None:
        """Send a signal that ends the process, and wait; kill it when it does not end."""
        with self.lock:
            if self.process is None:
                return
            self.process.send_signal(how)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Freeze the process, or let it continue."""
        if self.alive():
            assert self.process is not None
            self.process.send_signal(number)


class Cluster:
    """The brokers of trials, with a proxy in front of each.

    Attributes:
        notes: features that this machine does not permit.
    """

    def __init__(self, folder: Path, brokers: int = 1, heap: str = "512m", *, own_disk: bool = False) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.nodes: list[Node] = []
        self.proxies: list[Proxy] = []
        self._mounts: list[Path] = []
        self._net = _Network(brokers) if brokers > 1 else None
        if self._net is not None and not self._net.permitted:
            self.notes.append("network namespaces are not permitted: no splits between brokers")
        for number in range(1, brokers + 1):
            port = free_port(*[proxy.port for proxy in self.proxies])
            host, namespace = (HOST, "") if self._net is None else self._net.place(number)
            node = Node(number, folder / f"node-{number}", heap, host, namespace, port)
            self.nodes.append(node)
            self.proxies.append(Proxy(port, (node.host, node.proxied_port), number))
            if own_disk and brokers == 1:
                self._mount(node.folder / "log")
        voters = ",".join(f"{node.number}@{node.host}:{node.controller_port}" for node in self.nodes)
        random_id = bytearray(uuid.uuid4().bytes)
        random_id[0] &= 0x7F
        cluster_id = base64.urlsafe_b64encode(bytes(random_id)).decode().rstrip("=")
        for node in self.nodes:
            node.configure(voters, brokers)
        threads = [threading.Thread(target=node.format, args=(cluster_id,)) for node in self.nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            for node in self.nodes:
                node.launch()
            self.wait()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """The address for the trial's own clients."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def proxied(self) -> str:
        """The address for workers, whose connections go through the proxies."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies)

    @property
    def splits(self) -> bool:
        """Whether brokers can be isolated from each other."""
        return self._net is not None and self._net.permitted

    @property
    def disks(self) -> bool:
        """Whether a broker has its own disk, which can be filled."""
        return bool(self._mounts)

    def wait(self) -> None:
        """Wait until every node that runs answers.

        A node that has ended by itself is started again, as an operator of brokers would.
        """
        deadline = time.monotonic() + START_S
        for node in self.nodes:
            while not answers(node.bootstrap, 2.0):
                assert time.monotonic() < deadline, f"broker {node.number} does not answer; see {node.folder}"
                node.launch()
                time.sleep(0.05)

    def in_sync(self) -> bool:
        """Whether every replica of every partition is in sync, so that one more broker can be lost."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            known = client.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [found for topic in known.topics.values() for found in topic.partitions.values()]
        return len(known.brokers) == len(self.nodes) and all(len(p.isrs) == len(p.replicas) for p in partitions)

    def heal(self) -> None:
        """End all faults: every node runs, and every connection works."""
        for proxy in self.proxies:
            proxy.heal()
        if self._net is not None:
            self._net.heal()
        for mount in self._mounts:
            (mount / "filler").unlink(missing_ok=True)
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.launch()
        self.wait()

    @contextlib.contextmanager
    def split(self, node: int, others: list[int] | None) -> Iterator[None]:
        """Isolate a node (from 0) from others, or from everything where `others` is None."""
        assert self._net is not None
        self._net.cut(node + 1, None if others is None else [other + 1 for other in others])
        try:
            yield
        finally:
            self._net.mend(node + 1, None if others is None else [other + 1 for other in others])

    def fill_disk(self, node: int) -> Path:
        """Fill a node's disk completely; returns the file to remove."""
        return fill(self.nodes[node].folder / "log")

    def _mount(self, path: Path) -> None:
        path.mkdir(parents=True)
        if mount_memory(path, DISK):
            self._mounts.append(path)
        else:
            self.notes.append("file systems cannot be mounted: no full disk of a broker")

    def close(self) -> None:
        """End all processes."""
        for proxy in self.proxies:
            proxy.close()
        for node in self.nodes:
            node.end(signal.SIGKILL)
        for mount in self._mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False)
        if self._net is not None:
            self._net.close()

    def discard(self) -> None:
        """End all processes and remove the data."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Attached:
    """A broker that another program runs, for trials whose brokers and connections do not fail."""

    splits = False
    disks = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = self.proxied = bootstrap
        self.nodes: list[Node] = []
        self.proxies: list[Proxy] = []
        self.notes: list[str] = []

    def heal(self) -> None:
        """Do nothing: this broker has no faults."""

    def wait(self) -> None:
        """Wait for nothing: this broker runs."""

    def in_sync(self) -> bool:
        """True: there are no replicas."""
        return True


def mount_memory(path: Path, size: str) -> bool:
    """Mount a file system of a given size in memory; returns False where this is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fill(folder: Path) -> Path:
    """Fill the rest of a file system; returns the file to remove."""
    filler = folder / "filler"
    block = bytes(1 << 20)
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
        while block:
            try:
                out.write(block)
            except OSError:
                block = block[: len(block) // 2]
    return filler


class _Network:
    """A bridge with a network namespace per node."""

    def __init__(self, nodes: int) -> None:
        tag = os.urandom(2).hex()
        self._bridge = f"wb{tag}"
        self._subnet = f"10.{int(tag[:2], 16)}.{int(tag[2:], 16)}"
        self._names = {number: f"w{tag}{number}" for number in range(1, nodes + 1)}
        self._cuts: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self.permitted = self._make()

    def _make(self) -> bool:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, name in self._names.items():
                _ip("netns", "add", name)
                _ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", f"{name}h", "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{self._address(number)}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError):
            self.close()
            return False
        return True

    def _address(self, number: int) -> str:
        return f"{self._subnet}.{10 + number}"

    def place(self, number: int) -> tuple[str, str]:
        """The address and the namespace of a node."""
        return (self._address(number), self._names[number]) if self.permitted else (HOST, "")

    def cut(self, node: int, others: list[int] | None) -> None:
        """Drop the packets between a node and others."""
        with self._lock:
            if others is None:
                _ip("link", "set", f"{self._names[node]}h", "down")
            for other in others or ():
                for one, two in ((node, other), (other, node)):
                    if (one, two) not in self._cuts:
                        self._cuts.add((one, two))
                        _ip("-n", self._names[one], "route", "add", "blackhole", f"{self._address(two)}/32")

    def mend(self, node: int, others: list[int] | None) -> None:
        """Let the packets between them pass again."""
        with self._lock:
            if others is None:
                _ip("link", "set", f"{self._names[node]}h", "up")
            for other in others or ():
                for one, two in ((node, other), (other, node)):
                    if (one, two) in self._cuts:
                        self._cuts.discard((one, two))
                        _ip("-n", self._names[one], "route", "del", "blackhole", f"{self._address(two)}/32")

    def heal(self) -> None:
        """Let all packets pass again."""
        if self.permitted:
            for number in self._names:
                self.mend(number, None)
            for one, two in list(self._cuts):
                self.mend(one, [two])

    def close(self) -> None:
        """Remove bridge and namespaces."""
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
