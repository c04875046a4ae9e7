"""Every mistake of a user's own making: exit code 2, one panel that helps, and nothing left behind."""

import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline.errors import SynclineError
from syncline.training.checkpoint_info import CheckpointInfo
from syncline.training.config import TrainConfig
from syncline.training.config_file import write_config
from syncline.training.files import write_json
from syncline.training.rank import train_rank

STARTING = re.compile(r"Starting 1 rank; the run's folder is .*\n")

OWN_MODULE = """
import torch
from torch import nn
from syncline import InputSpec, Workload

VALUE = 3
MODEL = nn.Linear(4, 2)
INPUT = InputSpec(kind="features", shape=(8,), classes=4)

class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, inputs): return self.used(inputs)

def build(): return nn.Linear(4, 2)
def needs_width(width): return nn.Linear(width, 2)
def gives_number(): return 7
def raises(): raise ValueError("the weights are gone")
def narrow(): return Workload(model=nn.Linear(5, 4), input=INPUT)
def frozen(): return Workload(model=nn.Linear(8, 4).requires_grad_(False), input=INPUT)
def no_optimizer(): return Workload(model=nn.Linear(8, 4), input=INPUT, optimizer=lambda parameters: 3)
def unused(): return Workload(model=Unused(), input=INPUT)
def loss_by_row():
    print("a word from the model")
    return Workload(model=nn.Linear(8, 4), input=INPUT, loss=nn.CrossEntropyLoss(reduction="none"))
"""

FILES = {
    "own.py": OWN_MODULE,
    "broken.py": "import a_package_that_nobody_has\n",
    "unreadable.py": "def build(:\n",
    "invalid.toml": "steps = [\n",
    "unknown.toml": "stepz = 3\n",
    "unknown_in_table.toml": "[optimizer]\nlearning_rate = 0.1\n",
    "wrong_type.toml": 'steps = "many"\n[optimizer]\nname = "adagrad"\n',
    "wrong_range.toml": "[checkpoint]\nevery = -1\n",
    "not_a_table.toml": "optimizer = 3\n",
    "short_list.toml": "[optimizer]\nbetas = [0.9]\n",
    "not_a_list.toml": 'tracking = "tensorboard"\n',
    "newer.toml": "schema = 2\n",
    "fine.toml": "steps = 3\n",
    "seed.toml": "seed = 5\nsteps = 50\n",
    "shape.toml": '[input]\nkind = "image"\nshape = [3]\nclasses = 10\n',
    "diverging.toml": '[optimizer]\nname = "sgd"\nlr = 1e25\n',
    "notes.txt": "nothing to train on",
}


@pytest.fixture
def folder(workplace):
    """A folder with modules, files of settings, a run that made 5 steps, and one that never got so far."""
    for name, text in FILES.items():
        (workplace / name).write_text(text)
    (workplace / "empty").mkdir()
    for name in ("done", "early"):
        (workplace / name).mkdir()
        config = TrainConfig(model="gpt2-tiny", data="stdlib-text", ranks=2, steps=5)
        write_config(config, workplace / name / "config.toml")
    info = CheckpointInfo(step=5, samples=80, train_s=1, model="gpt2-tiny", strategy="data", world_size=2)
    checkpoint = workplace / "done" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    write_json(checkpoint / "syncline.json", asdict(info))
    return workplace


def words_of_panel(text, title):
    """The text of the one panel, which must be all that there is."""
    lines = text.splitlines()
    assert text.count("╭") == text.count("╰") == 1, text
    assert all(line[:1] in "╭│╰" for line in lines), text
    assert "Traceback" not in text
    assert lines[0].startswith(f"╭─ {title} ─"), text
    return " ".join(" ".join(line.strip("│╭╰╮╯ ") for line in lines[1:-1]).split())


def contents(folder):
    found = {path.relative_to(folder): path for path in folder.rglob("*") if "__pycache__" not in path.parts}
    return {name: path.read_bytes() if path.is_file() else None for name, path in found.items()}


def assert_refused(arguments, title, words, capfd, folder):
    before = contents(folder)
    assert run(arguments.split()) == 2
    shown = capfd.readouterr()
    message = words_of_panel(STARTING.sub("", shown.err).replace("a word from the model\n", ""), title)
    for word in words:
        assert word in message
    assert shown.out == ""
    assert contents(folder) == before


MISTAKES = [
    # The command itself.
    ("trian", "Wrong command", ['Unknown command "trian"', 'Did you mean "train"', "syncline --help"]),
    (
        "train gpt2-tiny --rank 2",
        "Wrong command",
        ["--rank", "Did you mean --ranks", "syncline train --help"],
    ),
    ("train gpt2-tiny --colour", "Wrong command", ["Unknown option", "--colour", "syncline train --help"]),
    ("train gpt2-tiny --steps ten", "Wrong command", ["--steps", '"ten"', "int"]),
    ("train gpt2-tiny --steps", "Wrong command", ["--steps", "requires an argument"]),
    ("train gpt2-tiny mlp", "Wrong command", ["Too many arguments: mlp"]),
    ("export", "Wrong command", ["RUN", "requires an argument", "syncline export --help"]),
    ("train", "Wrong setting", ["Which model?", "syncline train gpt2-tiny"]),
    # The model.
    (
        "train perceptron",
        "Wrong model",
        ["'perceptron'", "Known: alexnet, gpt2-medium", "package.module:function"],
    ),
    ("train gpt2-tinny", "Wrong model", ["'gpt2-tinny'", "Did you mean 'gpt2-tiny'?"]),
    ("train gpt2-tiny:witdh=3", "Wrong model", ["'witdh'", "Did you mean 'width'?", "heads=4"]),
    ("train gpt2-tiny:width=wide", "Wrong model", ["'width'", "'wide'", "a whole number"]),
    ("train gpt2-tiny:width=30", "Wrong model", ["width is 30", "multiple of heads (4)"]),
    ("train mlp:tiny", "Wrong model", ["mlp:size=tiny"]),
    (
        "train llama-70b --ranks 64 --batch 64",
        "Wrong model",
        ["68,976,648,192", "275.9 GB", "64 ranks", "GB of memory"],
    ),
    # The strategy.
    (
        "train gpt2-tiny --strategy shard",
        "Wrong strategy",
        ["'shard'", "Did you mean 'sharded'?", "Known: daso, data, "],
    ),
    (
        "train gpt2-tiny --strategy sharded:groop=2",
        "Wrong strategy",
        ["'groop'", "Did you mean 'group'?", "group=none"],
    ),
    ("train gpt2-tiny --strategy sharded:group=two", "Wrong strategy", ["'two'", "a whole number or none"]),
    ("train gpt2-tiny --strategy sharded:group", "Wrong strategy", ["key=value"]),
    (
        "train gpt2-tiny --strategy sharded:group=3 --ranks 4",
        "Wrong strategy",
        ["group=3", "4 ranks", "1, 2, 4"],
    ),
    (
        "train gpt2-tiny --strategy single --ranks 2",
        "Wrong strategy",
        ["1 rank, not on 2", "--ranks 1", "'data'"],
    ),
    (
        "train gpt2-tiny --strategy local:chunk=2 --ranks 2",
        "Wrong strategy",
        ["'chunk'", "Did you mean 'chunks'?", "queue=2"],
    ),
    (
        "train gpt2-tiny --strategy local:head=deep --ranks 2",
        "Wrong strategy",
        ["'deep'", "linear, mlp, conv, mirror or readout"],
    ),
    (
        "train gpt2-tiny --strategy pipeline:schedule=gpipes --ranks 2",
        "Wrong strategy",
        ["'gpipes'", "gpipe, 1f1b, interleaved or zero-bubble"],
    ),
    (
        "train gpt2-tiny --strategy pipeline:microbatches=3 --ranks 2 --batch 16",
        "Wrong strategy",
        ["16", "multiple of 3"],
    ),
    ("train gpt2-tiny --batch 15 --ranks 2", "Wrong strategy", ["15", "2 ranks", "--batch 14 or 16"]),
    # Numbers that cannot be.
    ("train gpt2-tiny --ranks 0", "Wrong setting", ["command line", "ranks is 0", "at least 1"]),
    ("train gpt2-tiny --steps 0", "Wrong setting", ["steps is 0", "at least 1"]),
    ("train gpt2-tiny --config fine.toml --batch 0", "Wrong setting", ["the command line", "batch is 0"]),
    # Data.
    (
        "train gpt2-tiny --data stdlib-txt",
        "Wrong data",
        ["'stdlib-txt'", "Did you mean 'stdlib-text'?", "synthetic"],
    ),
    ("train gpt2-tiny --data digits", "Wrong data", ["'digits' gives images", "tokens", "fits: stdlib-text"]),
    ("train resnet18 --data stdlib-text", "Wrong data", ["gives text", "[3, 224, 224]", "synthetic"]),
    ("train gpt2-tiny --data text:nowhere.txt", "Wrong data", ["no file or folder", "nowhere.txt"]),
    ("train gpt2-tiny --data text", "Wrong data", ["text:PATH"]),
    # Files of settings.
    ("train gpt2-tiny --config nowhere.toml", "Wrong setting", ["no file nowhere.toml"]),
    ("train gpt2-tiny --config empty", "Wrong setting", ["empty cannot be read", "directory"]),
    (
        "train gpt2-tiny --config invalid.toml",
        "Wrong setting",
        ["invalid.toml is not valid TOML", "document"],
    ),
    (
        "train gpt2-tiny --config unknown.toml",
        "Wrong setting",
        ["unknown.toml", "'stepz'", "Did you mean 'steps'?"],
    ),
    (
        "train gpt2-tiny --config unknown_in_table.toml",
        "Wrong setting",
        ["'optimizer.learning_rate'", "optimizer.lr"],
    ),
    (
        "train gpt2-tiny --config wrong_type.toml --steps 3",
        "Wrong setting",
        [
            "wrong_type.toml",
            "steps: 'many' is not a whole number",
            "optimizer.name: 'adagrad'",
            "adamw, adam, sgd",
        ],
    ),
    (
        "train gpt2-tiny --config wrong_range.toml",
        "Wrong setting",
        ["wrong_range.toml: checkpoint.every is -1"],
    ),
    ("train gpt2-tiny --config not_a_table.toml", "Wrong setting", ["optimizer: must be a table"]),
    (
        "train gpt2-tiny --config short_list.toml",
        "Wrong setting",
        ["optimizer.betas: [0.9] is not a list of 2"],
    ),
    ("train gpt2-tiny --config not_a_list.toml", "Wrong setting", ["tracking: 'tensorboard' is not a list"]),
    ("train gpt2-tiny --config newer.toml", "Wrong setting", ["schema: '2' is not one of 1"]),
    ("train gpt2-tiny --config shape.toml", "Wrong setting", ["[3]", "'image'", "[channels, height, width]"]),
    # Folders.
    ("train gpt2-tiny -o done", "Wrong folder", ["done is not empty", "--resume", "-o"]),
    ("train gpt2-tiny -o notes.txt", "Wrong folder", ["notes.txt cannot be made"]),
    ("train gpt2-tiny --resume", "Wrong setting", ["--resume needs the run's folder", "-o"]),
    ("train gpt2-tiny --resume -o nowhere", "Wrong folder", ["no folder nowhere"]),
    ("train --resume -o empty", "Wrong folder", ["no run in empty", "config.toml"]),
    ("train --resume -o early", "Wrong checkpoint", ["early has no checkpoint", "[checkpoint] every = N"]),
    ("train --resume -o done", "Wrong setting", ["5 steps of 5", "nothing left to do", "--steps 10"]),
    ("train --resume -o done --steps 50 --batch 8", "Wrong setting", ["batch = 16, not 8", "another folder"]),
    ("train --resume -o done --config seed.toml", "Wrong setting", ["seed = 0, not 5"]),
    ("train mlp --resume -o done --steps 50", "Wrong setting", ["model = 'gpt2-tiny', not 'mlp'"]),
    ("export empty", "Wrong folder", ["no run in empty", "config.toml"]),
    ("export nowhere", "Wrong folder", ["no folder nowhere"]),
    ("export early", "Wrong checkpoint", ["early has no checkpoint to export"]),
    (
        "export done -o nowhere/model.safetensors",
        "Wrong folder",
        ["nowhere/model.safetensors", "no folder nowhere"],
    ),
    ("export done -o empty", "Wrong folder", ["empty is a folder", "empty/model.safetensors"]),
    # The user's own module.
    (
        "train nowhere:build",
        "Wrong model",
        ["no module 'nowhere'", "Modules in that folder: broken, own, unreadable"],
    ),
    ("train broken:build", "Wrong model", ["'a_package_that_nobody_has'", "broken.py, line 1"]),
    ("train unreadable:build", "Wrong model", ["SyntaxError", "unreadable.py, line 1"]),
    ("train own:bild", "Wrong model", ["'bild'", "Did you mean 'build'?", "own.py"]),
    ("train own:needs_width", "Wrong model", ["needs arguments (width)", "defaults"]),
    ("train own:VALUE", "Wrong model", ["own:VALUE is of type int"]),
    ("train own:MODEL", "Wrong model", ["own:MODEL is a model, not a function"]),
    ("train own.py:build", "Wrong model", ["'own.py:build'", "Write own:build"]),
    # Emulated nodes.
    ("train gpt2-tiny --emulate 2by2", "Wrong cluster", ["'2by2'", "2x2@200mbit"]),
    ("train gpt2-tiny --emulate 2x2@5furlongs", "Wrong cluster", ["'furlongs'", "kbit, mbit, gbit"]),
    ("train gpt2-tiny --emulate 0x2", "Wrong cluster", ["0 nodes", "1 to 64"]),
    (
        "train gpt2-tiny --emulate 2x2 --ranks 3",
        "Wrong setting",
        ["'2x2' emulates 4 ranks", "3 are asked for"],
    ),
]


@pytest.mark.parametrize(("arguments", "title", "words"), MISTAKES, ids=[entry[0] for entry in MISTAKES])
def test_mistake_is_refused_before_anything_starts(arguments, title, words, capfd, folder):
    assert_refused(arguments, title, words, capfd, folder)


@pytest.mark.parametrize(
    ("arguments", "title", "words"),
    [
        ("own:raises -o new", "Wrong model", ["ValueError: the weights are gone", "own.py, line 19"]),
        ("own:unused", "Wrong model", ["idle.weight, idle.bias", "data:find-unused=true"]),
    ],
)
def test_mistake_that_a_rank_finds(arguments, title, words, capfd, folder):
    assert_refused(f"train --strategy data --ranks 1 {arguments}", title, words, capfd, folder)


RANKS_MISTAKES = {
    "own:gives_number": ["own:gives_number returned a value of type int", "nn.Module or a Workload"],
    "own:build": ["nothing says what own:build takes", "[input]", "shape = [3, 32, 32]"],
    "own:narrow": ["cannot take the batch (float32 (16, 8)", "16x8 and 5x4", "--data"],
    "own:loss_by_row": ["has the shape (16,)", "loss.mean()"],
    "own:frozen": ["own:frozen has no parameter to train", "requires_grad"],
    "own:no_optimizer": ["own:no_optimizer", "type int", "torch.optim.Optimizer"],
}


def errors_of(folder: Path, models: list[str]) -> dict[str, str]:
    """What a rank says of each model."""
    found = {}
    sys.path.insert(0, str(folder))
    for model in models:
        with pytest.raises(SynclineError) as caught:
            train_rank(TrainConfig(model=model, strategy="data", ranks=1), folder / "run", resume=False)
        found[model] = str(caught.value)
    return found


def test_what_ranks_say_of_models_that_cannot_be_trained(folder, run_ranks):
    found = run_ranks(errors_of, 1, folder, [*RANKS_MISTAKES])[0]
    for model, words in RANKS_MISTAKES.items():
        assert [word for word in words if word not in found[model]] == [], found[model]


def test_diverging_loss_keeps_the_folder(capfd, folder):
    command = "train mlp:size=tiny --data synthetic --strategy single --config diverging.toml -o run"
    assert run(command.split()) == 2
    shown = capfd.readouterr().err
    message = words_of_panel(shown[shown.index("╭") :], "Training diverged")
    assert re.search(r"at step \d+ of 100|after step \d+ of 100", message)
    assert "No checkpoint was saved before" in message
    assert "[optimizer] lr" in message
    summary = Path("run/summary.json").read_text()
    assert '"status": "failed"' in summary
    assert "Try a lower learning rate" in summary
