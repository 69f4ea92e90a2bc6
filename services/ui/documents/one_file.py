"""Makes the page of a plan as one file, to mail and to open from disk, for `weir explain --html` (`page_file`).

The file is the live page at one moment: its script, its style and its document are in it, and nothing else is loaded.
Its Content-Security-Policy allows only this script and this style, by their hashes. `expected` and `measured` make the
document.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import time
from collections.abc import Mapping, Sequence

import orjson

from operators.explain.analyze import Analysis, Observation
from operators.explain.explain import count
from operators.plan.choose import CostModel, Statistics
from operators.plan.plan import Plan
from schemas.query import Query
from services.ui.documents.picture import Document, counted, drawn
from services.ui.server import PAGE

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)
"""The modules of the page use these forms only."""

HTML = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
  <p class="name"><span>Weir</span> <b id="query"></b> <span id="sink"></span></p>
  <h1 id="basis"></h1>
  <p id="problem"></p>
</header>
<main>
  <section aria-labelledby="plan-title">
    <h2 id="plan-title">Plan</h2>
    <p class="hint">Tuples flow from left to right. The width of a line is its tuples per second, the colour of a join \
its share of a core; ~ is an expected figure. Select a node for its figures.</p>
    <div id="plans"></div>
    <pre id="aggregate" tabindex="0" hidden></pre>
    <div id="node" class="card" aria-live="polite" hidden></div>
  </section>
  <section aria-labelledby="tasks-title" hidden>
    <h2 id="tasks-title">Tasks</h2>
    <div class="wide" role="group" tabindex="0" aria-label="All tasks"><table id="tasks"></table></div>
  </section>
  <section aria-labelledby="changes-title" hidden>
    <h2 id="changes-title">Plan changes and decisions</h2>
    <ol id="changes" class="list"></ol>
  </section>
  <section aria-labelledby="text-title">
    <details open><summary><h2 id="text-title">Query</h2></summary><pre id="text" tabindex="0"></pre></details>
  </section>
</main>
<footer><p id="made" class="hint"></p></footer>
<noscript>This page needs JavaScript: save the file, and open it in a browser.</noscript>
<script type="application/json" id="document">{document}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def expected(query: Query, plan: Plan, statistics: Statistics) -> Document:
    """Return the document of a plan that does not run, with expected figures."""
    estimates = CostModel(query, statistics).estimates(plan)
    unmeasured = Analysis(query, plan, (), (), (), {}, {}, estimates, recent=False, finished=False)
    origin = "sampled" if statistics.sampled else "declared" if statistics.rates or statistics.distinct else "assumed"
    cost = count(estimates[frozenset(plan.aliases)].cost)
    return drawn(query, [unmeasured], {}) | {
        "now": _now_ms(),
        "basis": f"Expected, by {origin} statistics: {cost} tuples entered, probed and built per second of event time",
        "problem": "",
        "tasks": [],
    }


def measured(
    query: Query, found: Sequence[Analysis], decisions: Mapping[int, Document], silent: Sequence[str]
) -> Document:
    """Return the document of a query that runs, or of its run over files.

    Args:
        found: per plan, at least one.
        decisions: changes of plans that were weighed, by number.
        silent: a line for each task that is not in `found`.
    """
    tasks = sorted((one for analysis in found for one in analysis.observations), key=lambda one: one.task)
    if found[0].finished:
        basis = "Measured in a run over files: tuples alive on average, states at their largest"
    else:
        since = "lately" if all(one.recent for one in found) else "since its tasks began"
        basis = f"Measured in the running query, {since}"
    return drawn(query, found, decisions) | {
        "now": _now_ms(),
        "basis": basis,
        "problem": "; ".join(silent),
        "tasks": [_task(one) for one in tasks],
    }


def _now_ms() -> int:
    return int(time.time() * 1000)


def _task(one: Observation) -> Document:
    return {
        "task": one.task,
        "cut": one.latest.cut,
        "busy": one.gained(lambda statistics: statistics.busy_s) / one.apart_s if one.apart_s > 0 else None,
        "pending": one.latest.pending_tuples,
    } | counted(one)


def page_file(document: Document) -> str:
    """Return the page as HTML.

    Args:
        document: of `expected` or `measured`.
    """
    script, style = _script("one_file"), (PAGE / "weir.css").read_text("utf-8")
    return HTML.format(
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'",
        title=html.escape(f"{document['query']}: plan"),
        style=style,
        # The text of a query may contain </script>.
        document=orjson.dumps(document).decode().replace("<", "\\u003c"),
        script=script,
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _script(entry: str) -> str:
    """Return a module of the page and all that it imports, as one script in which each module is a function."""
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        text = (PAGE / f"{name}.js").read_text("utf-8")
        for _, imported in IMPORT.findall(text):
            if imported not in modules:
                add(imported)
        exported = ", ".join(name for _, name in EXPORT.findall(text))
        body = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = \2_js;", text))
        modules[name] = f"const {name}_js = (() => {{\n{body}return {{ {exported} }};\n}})();\n"

    add(entry)
    return "".join(modules.values())
