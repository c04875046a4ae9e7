"""Sends bytes over TCP: `receive`, or `send ADDRESS BYTES`, which prints the bits per second."""

import socket
import sys
import time

PORT = 7000


def receive():
    with socket.create_server(("0.0.0.0", PORT)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            count = int(stream.readline())
            while count:
                count -= len(stream.read(min(count, 1 << 16)))
            stream.write(b"!")


def send(address, count):
    with socket.create_connection((address, PORT)) as connection:
        start = time.perf_counter()
        connection.sendall(f"{count}\n".encode() + bytes(count))
        connection.recv(1)
        print(count * 8 / (time.perf_counter() - start))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(sys.argv[2], int(sys.argv[3]))
