"""Views of terms and e-graphs: networkx graphs, DOT, and one page of HTML.

networkx is imported when a view is first made, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from attnfuse.egraph.engine import EGraph
from attnfuse.ir.printing import expression
from attnfuse.ir.term import Term, walk

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.MultiDiGraph[Any]


def term_graph(*roots: Term) -> Graph:
    """Terms as a graph: a node for each term, named by its digest, an edge to each operand.

    Nodes have ``op``, ``label``, ``title`` (the whole term), ``type`` and ``root``; edges have
    ``place``, the position of the operand.
    """
    import networkx as nx

    graph: Graph = nx.MultiDiGraph()
    for term in walk(*roots):
        graph.add_node(
            term.digest,
            op=term.op.name,
            label=_label(term),
            title=expression(term),
            type=str(term.type),
            root=term in roots,
        )
        for place, operand in enumerate(term.operands):
            graph.add_edge(term.digest, operand.digest, place=place)
    return graph


def egraph_graph(egraph: EGraph, roots: Sequence[int] = ()) -> Graph:
    """An e-graph as a graph, with edges from a class to its e-nodes and from these to classes.

    Classes are named ``c1``, …, e-nodes ``n1``, …. Nodes have ``kind`` (class or node), ``label``,
    ``title`` and ``root``, classes also ``type``, e-nodes ``op``. Edges from e-nodes have
    ``place``.
    """
    import networkx as nx

    graph: Graph = nx.MultiDiGraph()
    wanted = set(map(egraph.find, roots))
    for number in egraph.classes():
        kind = str(egraph.known(number).type)
        title = f"{len(egraph.members(number))} e-nodes of {kind}"
        root = number in wanted
        graph.add_node(f"c{number}", kind="class", label=kind, type=kind, title=title, root=root)
    for number in egraph.classes():
        for node in egraph.members(number):
            term, name = egraph.term(node), f"n{node}"
            told = {"op": term.op.name, "label": _label(term), "title": expression(term)}
            graph.add_node(name, kind="node", root=False, **told)
            graph.add_edge(f"c{number}", name)
            for place, operand in enumerate(egraph.node(node).operands):
                graph.add_edge(name, f"c{egraph.find(operand)}", place=place)
    return graph


def _label(term: Term) -> str:
    """The op of a term with its attributes; a leaf or a form as it is printed."""
    if not term.operands or term.op.name == "indexed":
        text = expression(term)
        return text if len(text) <= 40 else f"{text[:39]}…"
    return " ".join([term.op.name, *map(str, term.attributes)])


def dot(graph: Graph) -> str:
    """A view in Graphviz's language."""
    lines = ["digraph {"]
    for name, data in graph.nodes(data=True):
        shape = "ellipse" if data.get("kind") == "class" else "box"
        style = ', style="bold"' if data["root"] else ""
        lines.append(f"  {_quote(name)} [label={_quote(data['label'])}, shape={shape}{style}];")
    lines += [f"  {_quote(source)} -> {_quote(target)};" for source, target in graph.edges()]
    return "\n".join([*lines, "}", ""])


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# -- HTML ------------------------------------------------------------------------------------------

_ROW, _GAP, _LETTER, _MARGIN = 64, 24, 7.2, 16

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 13px sans-serif; margin: 16px; }}
text {{ font: 12px monospace; text-anchor: middle; dominant-baseline: central; }}
path {{ fill: none; stroke: #999; }}
rect {{ fill: #fff; stroke: #333; }}
.class rect {{ fill: #eef3ff; stroke: #69c; stroke-dasharray: 4 2; }}
.root rect {{ stroke-width: 3; }}
.seen rect {{ fill: #ffe9a8; }} path.seen {{ stroke: #c80; stroke-width: 2; }}
#text {{ font: 12px monospace; white-space: pre-wrap; min-height: 3em; }}
</style></head><body><h1>{title}</h1>
<div id="text">Point at a node to see its whole term and what it is computed from.</div>
{svg}
<script>
const all = [...document.querySelectorAll("g, path")];
document.querySelectorAll("g").forEach(g => g.addEventListener("mouseenter", () => {{
  document.getElementById("text").textContent = g.querySelector("title").textContent;
  const seen = new Set([g.id]), todo = [g.id];
  while (todo.length) {{
    const at = todo.pop();
    document.querySelectorAll(`path[data-from="${{at}}"]`).forEach(p => {{
      if (!seen.has(p.dataset.to)) {{ seen.add(p.dataset.to); todo.push(p.dataset.to); }}
    }});
  }}
  all.forEach(x => x.classList.toggle("seen", seen.has(x.id || x.dataset.from)));
}}));
</script></body></html>
"""


def html(graph: Graph, title: str) -> str:
    """A view as one page of HTML that needs nothing else: no network, no server, no library."""
    return _PAGE.format(title=escape(title), svg=_svg(graph))


def _svg(graph: Graph) -> str:
    places, wide, high = _layout(graph)
    names = {name: f"v{number}" for number, name in enumerate(graph.nodes)}
    parts = [_edge(places[a], places[b], names[a], names[b]) for a, b in graph.edges()]
    for name, data in graph.nodes(data=True):
        x, y = places[name]
        half = _width(data["label"]) / 2
        kinds = [str(data.get("kind", "node")), *(["root"] if data["root"] else [])]
        parts.append(
            f'<g id="{names[name]}" class="{" ".join(kinds)}">'
            f"<title>{escape(data['title'])}</title>"
            f'<rect x="{x - half:.0f}" y="{y - 12:.0f}" width="{2 * half:.0f}" height="24" rx="4"/>'
            f'<text x="{x:.0f}" y="{y:.0f}">{escape(data["label"])}</text></g>'
        )
    size = f'width="{wide:.0f}" height="{high:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _edge(start: tuple[float, float], end: tuple[float, float], source: str, target: str) -> str:
    (x, y), (u, v) = start, end
    bend = (y + v) / 2
    path = f"M{x:.0f} {y:.0f}C{x:.0f} {bend:.0f} {u:.0f} {bend:.0f} {u:.0f} {v:.0f}"
    return f'<path data-from="{source}" data-to="{target}" d="{path}"/>'


def _width(label: str) -> float:
    return len(label) * _LETTER + 16


def _layout(graph: Graph) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Rows from the roots down, each ordered by where its users stand; and the size of it all."""
    places: dict[str, tuple[float, float]] = {}
    wide = 0.0
    rows = _rows(graph)
    for number, row in enumerate(rows):
        x = float(_MARGIN)
        for name in sorted(row, key=lambda name: _middle(graph, places, name)):
            half = _width(graph.nodes[name]["label"]) / 2
            places[name] = (x + half, _MARGIN + 12.0 + number * _ROW)
            x += 2 * half + _GAP
        wide = max(wide, x)
    return places, wide, 2.0 * _MARGIN + len(rows) * _ROW


def _rows(graph: Graph) -> list[list[str]]:
    """Nodes by their distance from what nobody uses, the longest way; cycles share a row."""
    import networkx as nx

    components: Any = nx.condensation(nx.DiGraph(graph))
    generations = nx.topological_generations(components)
    return [
        [name for part in generation for name in sorted(components.nodes[part]["members"])]
        for generation in generations
    ]


def _middle(graph: Graph, places: dict[str, tuple[float, float]], name: str) -> float:
    above = [places[user][0] for user in graph.predecessors(name) if user in places]
    return sum(above) / len(above) if above else 0.0
