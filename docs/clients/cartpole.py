"""CartPole as a program of its own, which asks Headrace for each action. It needs the standard library only.

    headrace up --env remote --env.port 7654
    python cartpole.py ws://127.0.0.1:7654

For a simulator of your own replace CartPole: its two spaces, `reset` and `step`.
"""

import base64
import json
import math
import os
import random
import socket
import ssl
import struct
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts to connect
SILENCE = 60.0  # seconds without a message: the connection is broken; Headrace sends a ping every 20


class CartPole:
    """The simulator: the physics of Gymnasium's CartPole-v1."""

    OBSERVATION = {"kind": "box", "shape": [4]}
    ACTION = {"kind": "discrete", "n": 2}

    def reset(self):
        """Begins an episode. Returns its first observation: position and speed of the cart, angle and spin of the pole."""
        self.steps = 0
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        """Returns the observation, the reward, whether the episode terminated, and whether a limit cut it off."""
        x, speed, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * spin * spin * sin) / 1.1
        spin_change = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        speed_change = push - 0.05 * spin_change * cos / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * speed_change, angle + 0.02 * spin, spin + 0.02 * spin_change]
        self.steps += 1
        terminated = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return self.state, 1.0, terminated, self.steps >= 500 and not terminated


class Refused(Exception):
    """Headrace has said why, and wants this program to stay away."""


class Connection:
    """JSON over WebSocket (RFC 6455). Every method raises OSError where the connection ends."""

    def __init__(self, address, hello):
        url = urlsplit(address)
        self.socket = socket.create_connection((url.hostname, url.port or (443 if url.scheme == "wss" else 80)), SILENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if url.scheme == "wss":
            self.socket = ssl.create_default_context().wrap_socket(self.socket, server_hostname=url.hostname)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET / HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.file = self.socket.makefile("rb")
        status = self.file.readline().decode("latin-1").strip()
        if " 101 " not in status:
            raise OSError(f"no WebSocket there: {status}")
        while self.file.readline().strip():
            pass
        self.ask(hello)

    def ask(self, message):
        """Sends a message, and returns the answer. Raises Refused."""
        self.send(1, json.dumps(message).encode())
        answer = json.loads(self.receive())
        if "close" not in answer:
            return answer
        if answer["again"]:
            raise OSError(answer["close"])
        raise Refused(answer["close"])

    def send(self, kind, data):
        size, mask = len(data), os.urandom(4)
        head = bytes([0x80 | kind, 0x80 | size]) if size < 126 else struct.pack(">BBQ", 0x80 | kind, 0xFF, size)
        long_mask = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(long_mask, "big")).to_bytes(size, "big")
        self.socket.sendall(head + mask + masked)

    def receive(self):
        text = b""
        while True:
            first, size = self.read(2)
            if size >= 126:
                size = int.from_bytes(self.read(2 if size == 126 else 8), "big")
            data = self.read(size)
            kind = first & 15
            if kind == 8:
                raise OSError("Headrace has closed the connection")
            if kind == 9:
                self.send(10, data)  # a ping wants a pong
            if kind <= 2:
                text += data
                if first & 0x80:
                    return text

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise OSError("the connection broke")
        return data

    def close(self):
        self.socket.close()


def play(connection, simulator):
    """Steps the simulator with the actions that Headrace chooses, until the connection ends."""
    message = {"observation": simulator.reset()}
    while True:
        answer = connection.ask(message)
        if "reset" in answer:  # in place of an action: a new episode is wanted
            message = {"observation": simulator.reset()}
            continue
        observation, reward, terminated, truncated = simulator.step(answer["action"])
        message = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        if truncated:
            message["final_observation"] = observation
        if terminated or truncated:
            message["observation"] = simulator.reset()


def token():
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "headrace" / "token"
    return os.environ.get("HEADRACE_TOKEN") or path.read_text().strip()


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:7654"
    hello = {"observation": CartPole.OBSERVATION, "action": CartPole.ACTION, "name": "cartpole.py"}
    pause = FIRST_PAUSE
    while True:
        try:
            hello["token"] = token()
            connection = Connection(address, hello)
            print(f"connected to {address}", flush=True)
            pause = FIRST_PAUSE
            play(connection, CartPole())
        except Refused as error:
            sys.exit(f"Headrace ends this: {error}")
        except OSError as error:
            print(f"{address}: {error}; again in {pause:g} s", flush=True)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
