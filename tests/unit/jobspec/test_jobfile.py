"""Lines of keys in a job file. Answers to files that are not job files are in tests/golden/wrong-commands.txt."""

from __future__ import annotations

from gridtf.jobspec import jobfile


def test_locate_finds_the_lines_of_all_toml_syntax() -> None:
    text = (
        '"quoted key" = 1\n'
        "\n"
        "a.b . 'c d' = '''\n"
        "x = 1 # no key\n"
        "[no.table]'''\n"
        'e = """one \\""" two\n'
        'three"""  # comment = 1\n'
        "list = [ # [\n"
        "  { k = 1 }, '[',\n"
        "]\n"
        "  [t.u]  # header\n"
        "k = 'a # b'\n"
        "[[many]]\n"
        "k = 1\r\n"
        "[t]\n"
        "last = 1"
    )
    assert jobfile.locate(text) == {
        ("quoted key",): 1,
        ("a",): 3,  # a table without a header
        ("a", "b"): 3,
        ("a", "b", "c d"): 3,
        ("e",): 6,
        ("list",): 8,
        ("t", "u"): 11,
        ("t", "u", "k"): 12,
        ("many",): 13,
        ("many", "k"): 14,
        ("t",): 15,
        ("t", "last"): 16,
    }
