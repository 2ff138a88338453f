"""Machines on slow links, emulated: network namespaces of Linux, whose links to each other have a
token bucket at each end (tc-tbf). Needs root, and iproute2."""

import os
import socket
import subprocess
import sys
import time


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class SlowLink:
    """Two namespaces with a link of this many bits per second in each direction; a context manager."""

    addresses = ("10.87.31.1", "10.87.31.2")

    def __init__(self, bits_per_second):
        self.bits_per_second = bits_per_second
        number = os.getpid()
        self.names = [f"weft-{number}-{end}" for end in "ab"]
        self.devices = [f"weft{number}{end}" for end in "ab"]

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.devices
        ip("link", "add", first, "netns", self.names[0], "type", "veth", "peer", "name", second,
           "netns", self.names[1])
        for name, device, address in zip(self.names, self.devices, self.addresses):
            ip("-n", name, "addr", "add", address + "/24", "dev", device)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", device, "up")
            # Timers tick every few ms: what may go at once is what comes together in one of 4 ms.
            burst = max(self.bits_per_second // 8 // 250, 65536)
            subprocess.run(
                self.command(name, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                             f"{self.bits_per_second}bit", "burst", str(burst), "latency", "100ms"),
                check=True)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    @staticmethod
    def command(name, *arguments):
        """`arguments` as a command in the namespace."""
        return ["ip", "netns", "exec", name, *arguments]

    def measure(self, bytes_sent):
        """Bits per second of one TCP stream over the link."""
        receive = subprocess.Popen(
            self.command(self.names[1], sys.executable, __file__, "receive", self.addresses[1]),
            stdout=subprocess.PIPE, text=True)
        receive.stdout.readline()
        subprocess.run(self.command(self.names[0], sys.executable, __file__, "send",
                                    self.addresses[1], str(bytes_sent)), check=True)
        seconds = float(receive.stdout.readline())
        receive.wait()
        return 8 * bytes_sent / seconds


PORT = 4711


def receive(address):
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        peer, _ = server.accept()
        start = time.monotonic()
        with peer:
            while peer.recv(1 << 20):
                pass
        print(time.monotonic() - start, flush=True)


def send(address, count):
    with socket.create_connection((address, PORT)) as peer:
        peer.sendall(bytes(count))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]))
