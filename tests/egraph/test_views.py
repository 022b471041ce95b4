from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from toy_graphs import LEAVES

from attnfuse.egraph.engine import EGraph
from attnfuse.egraph.saturate import saturate
from attnfuse.egraph.views import dot, egraph_graph, html, term_graph
from attnfuse.ir import build as ir
from attnfuse.ir.axes import Axis, DType
from attnfuse.ir.ops import OPS
from attnfuse.ir.term import Term, make
from attnfuse.rewrites import RULES

Q, K = Axis("q", 5), Axis("k", 7)
QUERY = ir.input_("q", "query", DType.float32, [Q, Axis("d", 4)])
KEY = ir.input_("k", "key", DType.float32, [K, Axis("d", 4)])
SCORES = ir.contract(ir.mul(ir.const(0.5), QUERY), KEY, over="d", dtype=DType.float32)
CAUSAL = ir.le(ir.index("k", [K]), ir.index("q", [Q]))
ROOT = ir.mask(ir.mul(SCORES, SCORES), CAUSAL)


def _saturated(root: Term) -> tuple[EGraph, int]:
    graph = EGraph()
    number = graph.add(root)
    saturate(graph, RULES)
    return graph, number


def test_a_term_is_a_graph_that_shares_what_the_term_shares() -> None:
    graph = term_graph(ROOT)
    assert nx.is_directed_acyclic_graph(graph)
    assert sorted(data["op"] for _, data in graph.nodes(data=True)) == sorted(
        ["mask", "mul", "contract", "mul", "input", "input", "const", "indexed"]
    )
    square = ROOT.operands[0]
    assert graph.number_of_edges(square.digest, SCORES.digest) == 2
    places = [data["place"] for _, _, data in graph.out_edges(square.digest, data=True)]
    assert sorted(places) == [0, 1]
    assert [name for name, data in graph.nodes(data=True) if data["root"]] == [ROOT.digest]
    assert graph.nodes[KEY.digest]["type"] == "float32[k=7, d=4]"
    assert graph.nodes[SCORES.digest]["label"] == "contract d float32"


def test_several_roots() -> None:
    roots = [data["root"] for _, data in term_graph(ROOT, SCORES).nodes(data=True)]
    assert sum(roots) == 2


def test_an_e_graph_is_a_graph_of_classes_and_e_nodes() -> None:
    egraph, root = _saturated(ROOT)
    graph = egraph_graph(egraph, [root])
    kinds = {name: data["kind"] for name, data in graph.nodes(data=True)}
    assert sum(kind == "class" for kind in kinds.values()) == len(egraph.classes())
    assert sum(kind == "node" for kind in kinds.values()) == egraph.size
    assert all(kinds[a] != kinds[b] for a, b in graph.edges())
    assert [name for name, data in graph.nodes(data=True) if data["root"]] == [
        f"c{egraph.find(root)}"
    ]
    scores = f"c{egraph.find(egraph.add(SCORES))}"
    ops = {graph.nodes[node]["op"] for node in graph.successors(scores)}
    assert ops == {"contract", "mul"}


def test_dot_has_every_node_and_edge_and_escapes_quotes() -> None:
    odd = ir.input_('say "x"\\', "query", DType.float32, [])
    graph = term_graph(make(OPS["tanh"], (odd,)))
    text = dot(graph)
    assert text.startswith("digraph {\n")
    assert text.endswith("}\n")
    assert r'label="say \"x\"\\"' in text
    assert text.count(" -> ") == 1
    assert text.count("shape=box") == 2
    egraph, root = _saturated(ROOT)
    view = egraph_graph(egraph, [root])
    drawn = dot(view)
    assert drawn.count("shape=") == view.number_of_nodes()
    assert drawn.count(" -> ") == view.number_of_edges()
    assert drawn.count('style="bold"') == 1


class _Page(HTMLParser):
    """Collects what a page has, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.nodes: set[str] = set()
        self.edges: list[tuple[str, str]] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named: dict[str, Any] = dict(attrs)
        self.loads += [named[name] for name in ("src", "href") if name in named]
        if tag == "g":
            self.nodes.add(named["id"])
        if tag == "path":
            self.edges.append((named["data-from"], named["data-to"]))
        if tag not in ("meta", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("of", ["term", "e-graph"])
def test_html_is_one_page_that_loads_nothing(of: str) -> None:
    egraph, root = _saturated(ROOT)
    view = term_graph(ROOT) if of == "term" else egraph_graph(egraph, [root])
    text = html(view, "scores < & >")
    page = _Page(text)
    assert page.open == []
    assert page.loads == []
    assert "<h1>scores &lt; &amp; &gt;</h1>" in text
    assert len(page.nodes) == view.number_of_nodes()
    assert len(page.edges) == view.number_of_edges()
    assert {end for edge in page.edges for end in edge} <= page.nodes
    boxes = re.findall(r'<rect x="(-?\d+)" y="(-?\d+)" width="(\d+)"', text)
    spans = sorted((int(y), int(x), int(x) + int(w)) for x, y, w in boxes)
    for (y, _, end), (other, start, _) in pairwise(spans):
        assert y != other or end < start, "boxes overlap"


def test_a_cyclic_e_graph_can_be_drawn() -> None:
    egraph = EGraph()
    x = LEAVES[0]
    egraph.union(egraph.add(x), egraph.add(make(OPS["tanh"], (x,))), "given")
    egraph.rebuild()
    view = egraph_graph(egraph)
    assert not nx.is_directed_acyclic_graph(view)
    assert len(_Page(html(view, "a cycle")).nodes) == 3


def test_networkx_is_imported_by_views_only() -> None:
    program = "import sys, attnfuse.egraph.views, attnfuse.egraph.explain, attnfuse.rewrites\n"
    program += "print('networkx' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False False", done.stderr
