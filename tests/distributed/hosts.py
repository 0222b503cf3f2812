"""Two hosts on one machine: each has its own network, name, processes and sshd, and a cable joins them.

A host is a process in namespaces of its own. Nothing of it has a name outside: when the process ends, or the tests do, the
kernel removes its network, its mounts and every process that was started there.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

INTERFACE, PORT = "eth0", 2222  # the interface has the same name on both: horovodrun looks for a common one
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
TOOLS = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
TOOLS |= dict.fromkeys(("unshare", "nsenter", "setpriv"), "util-linux")
# The host ends with the tests, and all of its processes with the host.
NAMESPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "--pid", "--mount-proc"]
NAMESPACES += ["--fork", "--kill-child"]
START = """
set -eu
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/ssh" /etc/ssh
mount -t tmpfs none /run
mkdir -m 755 /run/sshd
echo ready
read -r plugged
ip link set lo up
ip address add "$3/24" dev "$4"
ip link set "$4" up
exec "$5" -D -e -f /etc/ssh/sshd_config
"""
PROBE = "hostname probe && mount -t tmpfs none /run && ip link add one type veth peer name two"
SERVER = """
Port {port}
ListenAddress {address}
HostKey /etc/ssh/key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
ClientAliveInterval 1
ClientAliveCountMax 3
"""
CLIENT = """
Port {port}
IdentityFile /etc/ssh/key
IdentitiesOnly yes
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


def missing() -> str | None:
    """Why there can be no hosts here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "Hosts are namespaces of Linux, which only root can make."
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=PATH) is None:
            return f"{tool} was not found, and make test could not install it. Debian's package: {package}"
    done = subprocess.run(
        [*NAMESPACES, "sh", "-c", PROBE], env={"PATH": PATH}, capture_output=True, text=True, timeout=30
    )
    return f"Namespaces are not permitted here: {done.stderr.strip()}" if done.returncode else None


class Host:
    """One of them.

    :param folder: what it sees as ``/etc/hosts`` and ``/etc/ssh``; its log is written there.
    """

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        (folder / name).mkdir()
        (folder / name / "hosts").write_bytes((folder / "hosts").read_bytes())
        shutil.copytree(folder / "ssh", folder / name / "ssh")
        (folder / name / "ssh" / "sshd_config").write_text(SERVER.format(port=PORT, address=address))
        sshd = shutil.which("sshd", path=PATH)
        with self.log.open("w") as log:
            self.outside = subprocess.Popen(
                [*NAMESPACES, "sh", "-c", START, "sh", name, folder / name, address, INTERFACE, sshd],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "PATH": PATH},
            )  # fmt: skip
        try:
            self.wait_for("ready")
            (self.pid,) = self.first()
        except BaseException:
            self.remove()
            raise

    @property
    def inside(self) -> list[str]:
        """What a command is started with to run on this host."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid"]

    def run(self, *command: str) -> None:
        subprocess.run([*self.inside, *command], env={**os.environ, "PATH": PATH}, check=True, timeout=30)

    def plug_in(self) -> None:
        """Say that the cable is there."""
        self.outside.stdin.write(b"\n")
        self.outside.stdin.flush()
        self.wait_for("Server listening on")

    def wait_for(self, words: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.log.read_text():
            assert self.outside.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def first(self) -> list[int]:
        """The process that all others there descend from, as it is numbered outside; nothing if it has ended."""
        pid = self.outside.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def processes(self) -> dict[int, str]:
        """What runs there besides sshd."""
        mine, found = os.readlink(f"/proc/{self.pid}/ns/pid"), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name = (folder / "comm").read_text().strip()
                if os.readlink(folder / "ns" / "pid") == mine and name != "sshd":
                    found[int(folder.name)] = name
        return found

    def remove(self) -> None:
        """End its first process, and with it all others."""
        for pid in self.first() or [self.outside.pid]:
            os.kill(pid, signal.SIGKILL)
        self.outside.wait(30)
        self.outside.stdin.close()


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Joined by a cable; each may log in to the other with a key."""
    addresses = {"host1": "10.77.0.1", "host2": "10.77.0.2"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gptf-hosts-")))
        (folder / "ssh").mkdir()
        (folder / "ssh" / "ssh_config").write_text(CLIENT.format(port=PORT))
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
        )
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ssh" / "key"], check=True, timeout=30
        )
        hosts = []
        for name, address in addresses.items():
            hosts.append(Host(name, address, folder))
            stack.callback(hosts[-1].remove)
        first, second = hosts
        ends = [INTERFACE, "netns", str(first.pid)], [INTERFACE, "netns", str(second.pid)]
        cable = ["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]]
        subprocess.run(cable, env={"PATH": PATH}, check=True, timeout=30)
        for host in hosts:
            host.plug_in()
        yield first, second
