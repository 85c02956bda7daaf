"""Run the notebooks: `python -m notebooks [--smoke] [NAME ...]`.

The sources are the scripts of this folder, in jupytext's percent format. Each is run in a fresh
kernel and written beside its script as an `.ipynb` file with outputs and figures. With `--smoke`
the scripts see the environment variable `SMOKE` and take small problems; nothing is written.
"""

import argparse
import os
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
# Collecting garbage takes a tenth of a smoke run, as compilation makes many objects.
SMOKE_ARGUMENTS = ["--IPKernelApp.exec_lines=import gc; gc.disable()"]


def run(script: Path, *, smoke: bool) -> nbformat.NotebookNode:
    """Return the script as a notebook with the outputs of its cells.

    Args:
        script: the script, in percent format.
        smoke: whether this is a smoke run, whose kernel collects no garbage.
    """
    notebook = jupytext.read(script)
    notebook.metadata["kernelspec"] = {
        "name": "python3", "display_name": "Python 3", "language": "python",
    }  # fmt: skip
    NotebookClient(
        notebook,
        timeout=1800,
        resources={"metadata": {"path": str(FOLDER)}},
        extra_arguments=SMOKE_ARGUMENTS if smoke else [],
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same in every run
        cell.metadata.pop("execution", None)  # times of the run
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    """Run the notebooks named on the command line; by default all of them."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m notebooks", description="Run the notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--smoke", action="store_true", help="small problems; write nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"NAME: expected some of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    if arguments.smoke:
        os.environ["SMOKE"] = "1"
    for name in arguments.names or names:
        print(name, flush=True)
        notebook = run(FOLDER / f"{name}.py", smoke=arguments.smoke)
        if not arguments.smoke:
            nbformat.write(notebook, FOLDER / f"{name}.ipynb")


main()
