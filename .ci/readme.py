"""Print a shell command of the README, or run its Python blocks, each in a fresh namespace.

`readme.py command NUMBER`, or `readme.py run FILE FIRST STEP`: every STEP-th block from FIRST on.
"""

import gc
import re
import sys
from pathlib import Path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def main() -> None:
    if sys.argv[1] == "command":
        block = blocks(Path("README.md").read_text(), "bash")[int(sys.argv[2])]
        print(block.split("#")[0].strip())
    else:
        gc.disable()  # a part of the time, as JAX makes much garbage while it compiles
        first, step = map(int, sys.argv[3:5])
        for block in blocks(Path(sys.argv[2]).read_text(), "python")[first::step]:
            exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


main()
