"""The `syncline` command: its verbs, and how errors are shown.

Verbs are named by path and imported when called, so that `--help` answers at once, without torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from cyclopts import App, CycloptsError, UnusedCliTokensError
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from syncline import __version__
from syncline.cluster.rank import current_rank
from syncline.errors import RankFailedError, SynclineError

EXIT_BUG, EXIT_USER, EXIT_INTERRUPTED = 1, 2, 130
FIRST_RANK_LATE_S = 20.0
"""How much longer than others the first rank may take to find a mistake, on a busy machine."""

_VERBS = {
    "train": "Train a model: on ranks of this machine, on emulated nodes, or under torchrun and srun.",
    "plan": "Find the fastest way to train a model on a cluster, and see what else was weighed.",
    "bench": "Train with every strategy on the same work, and set side by side what each costs and why.",
    "report": "Rebuild the page of a benchmark, merge several, export them, or compare with an older one.",
    "doctor": "Show what this machine has, and which strategies can run here.",
    "probe": "Measure this machine's devices and links, and write cluster.toml.",
    "evaluate": "Evaluate a run's newest checkpoint, and the heads of its blocks.",
    "export": "Write the weights of a run as one safetensors file.",
}

_HELP = """Find how to train a PyTorch model fastest, train it that way, and see what each way costs.

First steps:

  syncline doctor

  syncline plan gpt2-small --cluster h100-dgx:2

  syncline train gpt2-tiny --strategy data --ranks 2

  syncline train my_package.my_module:build --steps 200
"""

app = App(name="syncline", help=_HELP, version=__version__, result_action="return_value")
for _name, _text in _VERBS.items():
    app.command(f"syncline.cli.{_name}:{_name}", name=_name, help=_text)


def main() -> None:
    """Run the command line: exit 2 and one panel for the user's mistakes, a traceback for bugs."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    errors = Console(stderr=True)
    try:
        if arguments and arguments[0] in _VERBS:
            # The page of a verb shows all that its function says, not the line of the list.
            app[arguments[0]].help = None
        code = app(arguments, exit_on_error=False, print_error=False, error_console=errors)
    except CycloptsError as error:
        show_error("Wrong command", explain_command(error), errors)
        return EXIT_USER
    except RankFailedError as error:
        if errors.is_terminal:
            # A rank that died in the middle of its progress bar leaves the line open and the cursor hidden.
            errors.show_cursor(True)
            errors.print()
        show_error(error.title, str(error), errors)
        return EXIT_BUG
    except SynclineError as error:
        show_error(error.title, str(error), errors)
        return EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def explain_command(error: CycloptsError) -> str:
    """What is wrong with a command line, and where its help is."""
    message = str(error)
    if isinstance(error, UnusedCliTokensError):
        message = f"Too many arguments: {' '.join(error.unused_tokens or ())}"
    verb = next((word for word in error.command_chain or () if word in _VERBS), "")
    return f"{message}\nSee: {' '.join(filter(None, ('syncline', verb, '--help')))}"


def show_error(title: str, message: str, console: Console) -> None:
    """One panel: what was given, why it cannot work, what to do.

    Under torchrun every rank finds the same mistake: the first one shows it, the others say a line. They
    stay until the first one leaves, for torchrun ends all ranks as soon as any has left.
    """
    rank = current_rank()
    if not rank.is_first:
        print(f"rank {rank.index}: {title}: {message.splitlines()[0]}", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(FIRST_RANK_LATE_S)
        return
    console.print(Panel(escape(message), title=title, title_align="left", border_style="red"))


if __name__ == "__main__":
    main()
