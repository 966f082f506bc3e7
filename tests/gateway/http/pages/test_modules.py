"""Which modules the document of the page names beforehand."""

from gateway.http.pages.modules import imported, preload_links

FILES = {
    "main.js": b"// import './no.js';\nimport { a } from './lib/a.js';\nimport './b.js';\n",
    "lib/a.js": b"import {\n  b,\n  c,\n} from '../b.js';\nexport * from \"./min.mjs\";\n",
    "lib/min.mjs": (
        b'import{a as e}from"./a.js";import"./core.mjs";var t="from \'./late.js\'";export{t as x};'
    ),
    "lib/core.mjs": b"/* import './late.js' */ export const core = 1;",
    "b.js": b"export const path = './no.js';\nconst later = () => import('./late.js');\n",
    "late.js": b"import { a } from './lib/a.js';\nimport fs from 'fs';\n",
    "other.js": b"",
}


def test_what_is_imported_is_found_nearest_first() -> None:
    names = imported(FILES, "main.js")
    assert names == ["main.js", "lib/a.js", "b.js", "lib/min.mjs", "lib/core.mjs"]


def test_a_call_names_nothing_but_its_module_may_be_an_entry_itself() -> None:
    assert "late.js" not in imported(FILES, "main.js")
    assert imported(FILES, "b.js", "late.js") == [
        "b.js",
        "late.js",
        "lib/a.js",
        "lib/min.mjs",
        "lib/core.mjs",
    ]


def test_each_link_names_a_module_below_the_root() -> None:
    assert preload_links(["lib/a.js"], "ui/1/") == (
        '<link rel="modulepreload" href="ui/1/lib/a.js">'
    )
