"""What tests/terms.py reads of a source, and which parts of names it finds."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import terms  # noqa: E402


def parts_of(text):
    """The problems of names in `text`, without their hints."""
    def problem_of(name):
        return terms.retired_part(terms.part_expression(terms.PARTS), terms.PARTS, name)
    return [problem.split(" is retired")[0] for problem in terms.found_parts(problem_of, "x.cc", text)]


def words_of(text):
    """The words of a text that are not blank."""
    return text.replace("\0", " ").split()


class Terms(unittest.TestCase):
    def test_a_part_of_a_name_is_found_in_both_kinds_of_names(self):
        camel, snake = "Pict" "ures", "pict" "ure"  # not in one word, which the script would find here
        self.assertEqual(parts_of(f"int a;\nRank{camel}(all_{snake}_files);"),
                         [f'x.cc:2: "{camel}" of Rank{camel}', f'x.cc:2: "{snake}" of all_{snake}_files'])

    def test_longer_words_and_single_words_are_no_parts(self):
        self.assertEqual(parts_of("BesidesThis standard_name IsStandard StarsStandForAll stand"), [])

    def test_literals_are_read_and_what_is_between_them_parts_them(self):
        text = 'Error("one of "  // of code\n      "which is", x ? \'"\' : "so", "many\\n");'
        self.assertEqual(words_of(terms.literals(text)), ["one", "of", "which", "is", "so", "many"])
        self.assertRegex(terms.literals(text), r"of\s+which")
        self.assertNotRegex(terms.literals(text), r"so\s+many")
        self.assertEqual(len(terms.literals(text)), len(text))

    def test_comments_of_scripts_are_read(self):
        text = '"""One."""\ncolour = "#two"  # three\n'
        self.assertEqual(words_of(terms.hash_comments("x.py", text)), ['"""One."""', "three"])
        self.assertEqual(words_of(terms.hash_comments("x.sh", text)), ["three"])


if __name__ == "__main__":
    unittest.main()
