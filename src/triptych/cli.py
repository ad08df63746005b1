"""argv → config → launch. Imports what a command needs when it runs, so that the router never loads torch."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from triptych.config import (
    SECRET_VARIABLE,
    DecodeConfig,
    FetchConfig,
    Layout,
    MediaConfig,
    ModelConfig,
    RouterConfig,
    ServerConfig,
    WorkerConfig,
    available_cores,
    cluster_secret,
    new_secret,
)
from triptych.errors import ConfigError, TriptychError

DType = Literal["float32", "bfloat16", "float16"]
WorkerRole = Literal["encode", "prefill-decode", "all"]
_media = Group("Media")
_at_least_one = Number(gte=1)
app = App(
    name="triptych",
    help="A multimodal server in panels: encode, prefill and decode apart.",
    default_parameter=Parameter(negative=()),
)
bench = App(name="bench", help="Benchmarks: compare outputs first, then times, with a named baseline.")
Model = Annotated[Path, Parameter(help="Checkpoint directory: config.json, weights, tokenizer, processor.")]
app.command(bench)

Host = Annotated[str, Parameter(help="Address to listen on.")]
Port = Annotated[int, Parameter(help="Port to listen on; 0 picks a free one.")]
Name = Annotated[str | None, Parameter(help="Name in the API; the directory's name if not given.")]
Device = Annotated[str, Parameter(help="cpu, cuda, cuda:1, xpu …")]
Threads = Annotated[
    int | None,
    Parameter(validator=_at_least_one, help="Threads of each forward pass; cores shared out if not given."),
]
SecretFile = Annotated[
    Path | None, Parameter(help=f"File with the cluster secret; else ${SECRET_VARIABLE} is read.")
]
FileRoot = Annotated[Path | None, Parameter(group=_media, help="Serve file: URLs from below here only.")]
AllowNetwork = Annotated[
    tuple[str, ...],
    Parameter(group=_media, help="A private network (CIDR) that media may come from; may be repeated."),
]
AllowHost = Annotated[
    tuple[str, ...], Parameter(group=_media, help="Only these hosts may be fetched from; may be repeated.")
]


@app.command
def serve(
    model: Model,
    /,
    *,
    layout: Annotated[Layout, Parameter(help="none: one address; e+pd: encode apart.")] = "none",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Name = None,
    dtype: DType = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    encode_workers: Annotated[int, Parameter(validator=_at_least_one, help="Encode workers of e+pd.")] = 1,
    prefill_decode_workers: Annotated[
        int, Parameter(validator=_at_least_one, help="Prefill-decode workers of e+pd.")
    ] = 1,
    media_file_root: FileRoot = None,
    media_allow_network: AllowNetwork = (),
    media_allow_host: AllowHost = (),
) -> None:
    """Serve MODEL (a local checkpoint directory) on this machine until Ctrl-C."""
    from triptych.launch.serve import ServeConfig
    from triptych.launch.serve import serve as run_serve

    if layout == "none" and (encode_workers, prefill_decode_workers) != (1, 1):
        raise ConfigError("--encode-workers and --prefill-decode-workers need --layout e+pd")
    num_forward = 2 if layout == "none" else encode_workers + prefill_decode_workers
    config = ServeConfig(
        model=_model(
            model, served_model_name, dtype, device, threads or max(1, available_cores() // num_forward)
        ),
        secret=cluster_secret() or new_secret(),
        layout=layout,
        server=ServerConfig(host=host, port=port),
        media=_media_config(media_file_root, media_allow_network, media_allow_host),
        num_encode=encode_workers,
        num_prefill_decode=prefill_decode_workers,
    )
    run_serve(config, Console(stderr=True))


@app.command
def worker(
    model: Model,
    /,
    *,
    role: WorkerRole,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    served_model_name: Name = None,
    dtype: DType = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    secret_file: SecretFile = None,
    media_file_root: FileRoot = None,
    media_allow_network: AllowNetwork = (),
    media_allow_host: AllowHost = (),
) -> None:
    """Run one worker of MODEL: encode, prefill-decode, or all in one."""
    from triptych.launch.processes import listen
    from triptych.launch.worker import run_worker

    secret = cluster_secret(secret_file)
    if secret is None and role == "all":
        secret = new_secret()
    if secret is None:
        raise ConfigError(f"workers share a secret: give --secret-file, or set {SECRET_VARIABLE}")
    what = _model(model, served_model_name, dtype, device, threads or available_cores())
    listener = listen(host, port)
    server = ServerConfig(host=host, port=listener.getsockname()[1])
    media = _media_config(media_file_root, media_allow_network, media_allow_host)
    config = WorkerConfig(role=role, model=what, secret=secret, server=server, media=media)
    console = Console(stderr=True)
    name = f"{role} worker of {escape(what.served_name)}"
    with console.status(f"loading {name} …") as progress:

        def on_ready() -> None:
            progress.stop()
            console.print(f"[bold]ready[/bold]  http://{host}:{server.port}  ({name})", highlight=False)

        run_worker(config, listener, on_ready)


@app.command
def route(
    *,
    encode: Annotated[tuple[str, ...], Parameter(help="URL of an encode worker; may be repeated.")] = (),
    prefill_decode: Annotated[tuple[str, ...], Parameter(help="URL of a prefill-decode worker.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Run the router in front of workers that are already there."""
    from triptych.launch.processes import listen
    from triptych.launch.router import run_router

    listener = listen(host, port)
    address = f"http://{host}:{listener.getsockname()[1]}/v1"
    Console(stderr=True).print(f"[bold]routing[/bold]  {address}", highlight=False)
    run_router(
        RouterConfig(
            encode_urls=tuple(url.rstrip("/") for url in encode),
            prefill_decode_urls=tuple(url.rstrip("/") for url in prefill_decode),
            server=ServerConfig(host=host, port=listener.getsockname()[1]),
        ),
        listener,
    )


@bench.command(name="serve")
def bench_serve(
    model: Model,
    /,
    *,
    peer: Annotated[
        tuple[str, ...], Parameter(help="NAME=URL,MODEL of a running OpenAI server; may be repeated.")
    ] = (),
    requests: Annotated[int, Parameter(validator=_at_least_one, help="Requests a round.")] = 64,
    concurrency: Annotated[int, Parameter(validator=_at_least_one, help="Requests at a time.")] = 8,
    rounds: Annotated[
        int, Parameter(validator=_at_least_one, help="Measured rounds; all servers take turns in each.")
    ] = 5,
    json: Annotated[bool, Parameter(help="A JSON line each instead of a table.")] = False,
) -> None:
    """Requests a second and time to first token of both layouts, beside other servers."""
    from triptych.bench.serve import ServeBench
    from triptych.bench.serve import bench_serve as run_bench

    run_bench(
        ServeBench(
            model=model.resolve(),
            peers=tuple(_peer(text) for text in peer),
            num_requests=requests,
            concurrency=concurrency,
            rounds=rounds,
        ),
        Console(width=150),
        as_json=json,
    )


def _peer(text: str) -> tuple[str, str, str]:
    name, _, rest = text.partition("=")
    url, _, model = rest.rpartition(",")
    if not (name and url and model):
        raise ConfigError(f"--peer {text}: write NAME=URL,MODEL")
    return name, url.rstrip("/"), model


def main() -> None:
    """Entry point of the `triptych` command."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if sys.argv[1:2] == ["child"]:
            _child(sys.argv[2], int(sys.argv[3]))
        else:
            app(sys.argv[1:])
    except TriptychError as error:
        text = Text.assemble(("error", "bold red"), " ", error.message)
        Console(stderr=True).print(text, soft_wrap=True)
        sys.exit(1)


def _child(kind: str, listener_fd: int) -> None:
    """The hidden command by which `launch.processes.spawn` starts our own children."""
    from triptych.launch.processes import read_spec, stop_with_parent

    with socket.socket(fileno=listener_fd) as sock:
        if kind == "router":
            from triptych.launch.router import run_router

            spec = read_spec(RouterConfig)
            stop_with_parent()
            run_router(spec, sock)
        elif kind == "worker":
            from triptych.launch.worker import run_worker

            config = read_spec(WorkerConfig)
            stop_with_parent()
            run_worker(config, sock)
        elif kind == "engine":
            from triptych.launch.engine import run_engine
            from triptych.launch.engine_spec import EngineSpec

            engine = read_spec(EngineSpec)
            stop_with_parent()
            run_engine(engine, sock)
        else:
            raise ConfigError(f"unknown kind of child: {kind}")


def _model(path: Path, name: str | None, dtype: DType, device: str, num_threads: int) -> ModelConfig:
    resolved = path.expanduser().resolve()
    if not resolved.is_dir():
        raise ConfigError(f"{path} is not a directory: give a checkpoint directory with config.json")
    if not (resolved / "config.json").is_file():
        raise ConfigError(f"{path} holds no config.json: give a checkpoint directory")
    return ModelConfig(
        path=resolved, served_name=name or resolved.name, dtype=dtype, device=device, num_threads=num_threads
    )


def _media_config(root: Path | None, networks: tuple[str, ...], hosts: tuple[str, ...]) -> MediaConfig:
    fetch = FetchConfig(
        allowed_hosts=hosts, allowed_networks=networks, file_root=None if root is None else root.resolve()
    )
    return MediaConfig(fetch=fetch, decode=DecodeConfig())
