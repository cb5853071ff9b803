"""Prompts that the shipped EAGLE head was trained on: `python benchmarks/head/make_prompts.py OUT.jsonl [NUM] [SEED]`.

Half of them are code: functions of the standard library to complete, explain or write (their docstrings are of the
Python documentation, PSF licence), and small functions of our own making with worked examples that were run. The other
half is chat: topics of our own under templates of our own. Nothing is taken from any benchmark.

The same NUM, SEED and Python version give the same file.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chat import chat_prompts
from functions import made_up_function

MODULES = """abc argparse array ast asyncio base64 bisect bz2 calendar cmath cmd code codecs collections colorsys
concurrent.futures configparser contextlib copy csv dataclasses datetime decimal difflib dis doctest email.utils enum
filecmp fileinput fnmatch fractions ftplib functools gettext glob graphlib gzip hashlib heapq hmac html http.client
http.cookies http.server imaplib importlib.util inspect io ipaddress itertools json keyword linecache locale logging
logging.handlers mailbox math mimetypes operator os os.path pathlib pickle pickletools pkgutil platform plistlib poplib
pprint profile queue random re reprlib sched secrets selectors shelve shlex shutil signal smtplib socket socketserver
sqlite3 statistics string stringprep struct subprocess sysconfig tabnanny tarfile tempfile textwrap threading time
timeit token tokenize trace traceback types typing unicodedata unittest unittest.mock urllib.parse urllib.request uuid
venv warnings wave weakref webbrowser xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils xmlrpc.client zipfile zlib
""".split()

EXPLAIN = (
    "Explain what `{name}` does in Python and show a short example.",
    "What does `{name}` do in Python?",
    "How do I use `{name}` in Python? Give a simple example.",
    "When should I use `{name}`, and what are common mistakes with it?",
    "Describe the parameters and the return value of this Python function.\n\n{stub}",
    "Summarize this documentation in two sentences.\n\n{doc}",
    "Write three unit tests for `{name}`, whose documentation is:\n\n{doc}",
    "I read this in the Python documentation. Explain it to a beginner.\n\n{doc}",
)
WRITE = (
    "Write a Python function named `{short}` that does the following.\n\n{doc}",
    "Implement the following function in Python.\n\n{stub}",
    "Complete this function:\n\n```python\n{stub}```",
    "{stub}",
    "{stub}",
    "{stub}",
    "Please finish this code.\n\n{stub}",
)
MAX_DOC_CHARS = 900


def main(out: Path, num: int, seed: int) -> None:
    """Write the file, and say what is in it."""
    dice = random.Random(seed)
    documented = list(documented_functions())
    chat = chat_prompts(dice)
    entries, seen = [], set[str]()
    while len(entries) < num:
        makers: tuple[tuple[str, Callable[[], str]], ...] = (
            ("code", lambda: made_up_function(dice)),
            ("stdlib", lambda: of_documentation(dice, *dice.choice(documented))),
            ("chat", lambda: next(chat)),
        )
        category, make = dice.choices(makers, (28, 22, 50))[0]
        text = make()
        if text not in seen:
            seen.add(text)
            entries.append({"id": f"{category}/{len(entries)}", "category": category, "turns": [text]})
    out.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    print(f"{len(entries)} prompts in {out}")


def documented_functions() -> Iterator[tuple[str, Any]]:
    """Public functions, classes and methods of the standard library that say what they do."""
    seen = set[int]()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, thing in sorted(vars(module).items()):
            home = getattr(thing, "__module__", None) or ""
            if name.startswith("_") or home.split(".")[0].lstrip("_") != module_name.split(".")[0]:
                continue
            if inspect.isclass(thing):
                members = [(f"{name}.{each}", value) for each, value in sorted(vars(thing).items()) if each[0] != "_"]
            else:
                members = []
            for path, member in [(name, thing), *members]:
                doc = inspect.getdoc(member) if callable(member) else None
                if doc and 40 <= len(doc) <= MAX_DOC_CHARS and id(member) not in seen:
                    seen.add(id(member))
                    yield f"{module_name}.{path}", member


def of_documentation(dice: random.Random, name: str, thing: Any) -> str:
    """One prompt about a documented function."""
    doc = inspect.getdoc(thing) or ""
    short = name.rsplit(".", 1)[-1]
    templates = WRITE if inspect.isroutine(thing) and dice.random() < 0.6 else EXPLAIN
    return dice.choice(templates).format(name=name, short=short, doc=doc, stub=stub_of(dice, name, short, thing, doc))


def stub_of(dice: random.Random, name: str, short: str, thing: Any, doc: str) -> str:
    """Signature and docstring, as one finds them in a file whose body is still missing."""
    try:
        signature = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing)))  # addresses change with each run
    except (TypeError, ValueError):
        signature = "(*args)"
    lines = doc.replace('"""', "'''").replace("\n", "\n    ")
    head = dice.choice(("", f"import {name.partition('.')[0]}\n\n\n"))
    keyword = "class" if inspect.isclass(thing) else "def"
    signature = "" if keyword == "class" else signature
    return f'{head}{keyword} {short}{signature}:\n    """{lines}\n    """\n'


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(Path(arguments[0]), int(arguments[1]) if arguments[1:] else 8000, int(arguments[2]) if arguments[2:] else 1)
