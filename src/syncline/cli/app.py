"""The `syncline` command: its verbs, and how errors are shown.

Verbs are named by path and imported when called, so that `--help` answers at once, without torch.
"""

from __future__ import annotations

import sys

from cyclopts import App, CycloptsError
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from syncline import __version__
from syncline.errors import RankFailedError, SynclineError

EXIT_BUG, EXIT_USER = 1, 2

_VERBS = {
    "train": "Train a model: on ranks of this machine, on emulated nodes, or under torchrun and srun.",
    "doctor": "Show what this machine has, and which strategies can run here.",
    "probe": "Measure this machine's devices and links, and write cluster.toml.",
    "export": "Write the weights of a run as one safetensors file.",
}

_HELP = """Find how to train a PyTorch model fastest, train it that way, and see what each way costs.

First steps:

  syncline doctor

  syncline train gpt2-tiny --strategy data --ranks 2

  syncline train my_package.my_module:build --steps 200
"""

app = App(name="syncline", help=_HELP, version=__version__)
for _name, _text in _VERBS.items():
    app.command(f"syncline.cli.{_name}:{_name}", name=_name, help=_text)


def main() -> None:
    """Run the command line: exit 2 and one panel for the user's mistakes, a traceback for bugs."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    errors = Console(stderr=True)
    try:
        code = app(arguments, exit_on_error=False, print_error=False, error_console=errors)
    except CycloptsError as error:
        show_error("Wrong command", f"{error}\nSee: syncline --help", errors)
        return EXIT_USER
    except RankFailedError as error:
        show_error(error.title, str(error), errors)
        return EXIT_BUG
    except SynclineError as error:
        show_error(error.title, str(error), errors)
        return EXIT_USER
    return code if isinstance(code, int) else 0


def show_error(title: str, message: str, console: Console) -> None:
    """One panel: what was given, why it cannot work, what to do."""
    console.print(Panel(escape(message), title=title, title_align="left", border_style="red"))


if __name__ == "__main__":
    main()
