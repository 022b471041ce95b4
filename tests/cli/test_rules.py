from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuse.cli import VERBS, main, parser
from attnfuse.cli.rules import catalogue
from attnfuse.rewrites import FAMILIES, RULES

WRONG = Path(__file__).parents[1] / "support" / "wrong_rules.py"


def test_list_says_what_each_rule_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.name for rule in RULES]
    (line,) = (line for line in lines if line.startswith("masks_merge "))
    assert "bits    mask(mask(x, p), r) → mask(x, p ∧ r)  (attnfuse.rewrites.masks)" in line


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data) == len(RULES)
    assert set(data[0]) >= {"name", "algebra", "exact", "left", "condition", "doc", "where"}


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "show", "scale_over_mask"]) == 0
    text = capsys.readouterr().out
    assert "scale_over_mask [bits]" in text
    assert "matches  mask(mul(c, x), p)" in text
    assert "declines when  not so: the factor is positive" in text
    assert main(["rules", "show", "scale_over_mask", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == "mask(mul(c, x), p)"


PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_of_rules_is_the_catalogue(
    golden: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "docs"]) == 0
    made = capsys.readouterr().out
    assert made == catalogue(RULES)
    before, _, _ = PAGE.read_text("utf-8").partition("<!-- rules -->\n")
    golden(f"{before}<!-- rules -->\n{made}", path=PAGE)


def test_the_catalogue_says_all_of_each_rule() -> None:
    text = catalogue(RULES)
    for rule in RULES:
        entry = text.partition(f"### {rule.name}\n")[2].partition("\n#")[0]
        assert rule.algebra in entry
        assert f"(`{rule.exact}`; matches `{rule.left}`" in entry
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {family.__name__.rpartition('.')[2]}" for family in FAMILIES
    ]


def test_check_of_one_of_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", "--rule", "masks_merge", "--count", "20"]) == 0
    assert capsys.readouterr().out.startswith("masks_merge: ok, 0 wrong of 2")


def test_check_of_a_file_with_a_wrong_rule(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rules", "check", str(WRONG), "--rule", "scale_out_of_softcap", "--count", "20"]
    assert main(arguments) == 1
    assert "scale_out_of_softcap: WRONG" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    (data,) = json.loads(capsys.readouterr().out)
    assert (data["passed"], data["rule"]) == (False, "scale_out_of_softcap")
    assert data["counterexamples"]


def test_the_seed_decides_on_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rules", "check", str(WRONG), "--rule", "gain_through_rope", "--count", "20"]
    texts: list[str] = []
    for seed in ("0", "0", "7"):
        main([*arguments, "--seed", seed])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_what_cannot_be_done_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "show", "masks_merg"]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("attnfuse: no rule is called 'masks_merg'; there are scale_out")
    assert found.out == ""
    assert main(["rules", "check", "no_such_file.py"]) == 2
    assert "there is no such Python file" in capsys.readouterr().err


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["rules"], [], ["rules", "check", "--count", "0"], ["fly"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    text = parser().format_help()
    assert all(f"\n    {verb} " in text for verb in VERBS)
    assert "list, show and check rewrite rules" in text


def test_python_m_attnfuse_uses_a_file_and_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from attnfuse.egraph.pattern import op, variables\n"
        "from attnfuse.egraph.rule import rule\n"
        "x, = variables('x')\n"
        "@rule(op.softmax(x), to=op.softmax(x))\n"
        "def mine():\n"
        "    '''softmax(x) → softmax(x)'''\n",
        "utf-8",
    )
    command = [sys.executable, "-X", "importtime", "-m", "attnfuse", "rules", "list", "--use"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("mine ")
    assert " torch\n" not in done.stderr
    assert " networkx\n" not in done.stderr
