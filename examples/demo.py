"""Start encode, prefill-decode and router as separate processes, ask about three media, stop everything.

    python examples/demo.py MODEL_DIRECTORY

Exit status 0 only if the answer came.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from media import red_circle, rising_tone, square_moving_right

HOST = "127.0.0.1"
STOP_SECONDS = 30
STAGES = {
    "fetch": "bytes of the media",
    "media_decode": "bytes → pixels, frames, samples",
    "process": "resize, patches, mel",
    "encode": "vision and audio encoders (encode worker)",
    "transfer": "embeddings → prefill worker",
    "queue": "waiting for the language engine",
    "prefill": "prompt → first token",
    "decode": "first → last token",
    "response": "HTTP, routing, templates, tokens → text",
}


def main(model: str) -> int:
    console = Console()
    port = free_port()
    command = [sys.executable, "-m", "triptych", "serve", model, "--layout", "e+pd", "--port", str(port)]
    console.print(f"[dim]$ triptych {' '.join(command[3:])}[/dim]")
    server = subprocess.Popen(command)
    try:
        wait_until_ready(server, port)
        return ask(console, port)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(STOP_SECONDS)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as sock:
        return sock.getsockname()[1]


def wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=1)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("the server did not start")


def question() -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": "Here is an image: "},
        {"type": "image_url", "image_url": {"url": red_circle()}},
        {"type": "text", "text": " a sound: "},
        {"type": "audio_url", "audio_url": {"url": rising_tone()}},
        {"type": "text", "text": " and a video: "},
        {"type": "video_url", "video_url": {"url": square_moving_right()}},
        {"type": "text", "text": " What are they?"},
    ]


def ask(console: Console, port: int) -> int:
    body = {
        "model": "tiny-omni",
        "messages": [{"role": "user", "content": question()}],
        "max_tokens": 48,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "include_timings": True,
    }
    console.print("\n[bold]question[/bold]  an image, a sound and a video: what are they?")
    console.print("[bold]answer[/bold]    ", end="")
    begun = time.perf_counter()
    num_tokens = 0
    usage: dict[str, Any] = {}
    for event in stream(port, body):
        if "error" in event:
            console.print(f"\n[red]{event['error']['message']}[/red]")
            return 1
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            num_tokens += bool(text)
            # Random weights write control characters too: a terminal must not obey them.
            console.print(printable(text), end="", markup=False, highlight=False)
        usage = event if event.get("usage") else usage
    total_ms = (time.perf_counter() - begun) * 1000
    console.print("\n[dim](the built-in model has random weights, so it babbles)[/dim]\n")
    if not num_tokens or not usage:
        console.print("[red]no answer came[/red]")
        return 1
    show_times(console, usage, total_ms)
    return 0


def printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def stream(port: int, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    if reply.status != http.client.OK:
        yield json.loads(reply.read())
        return
    for line in reply:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            yield json.loads(data)


def show_times(console: Console, usage: dict[str, Any], total_ms: float) -> None:
    counts, spent = usage["usage"], dict(usage["timings_ms"])
    caption = "encoding overlaps routing and tokenising: rows may add up to more than the total"
    table = Table(title="where the time went", caption=caption)
    table.add_column("stage")
    table.add_column("ms", justify="right")
    table.add_column("what it is", style="dim")
    spent["response"] = max(0.0, total_ms - sum(spent.values()))
    for stage, meaning in STAGES.items():
        table.add_row(stage, f"{spent.get(stage, 0.0):.1f}", meaning)
    sizes = f"{counts['prompt_tokens']} tokens in, {counts['completion_tokens']} out"
    table.add_row("total", f"{total_ms:.1f}", sizes)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
