# Where torch or transformers is not installed, what needs them says so.
import sys

import pytest


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_the_import_says_what_is_missing(monkeypatch, absent):
    for name in [name for name in sys.modules if name.startswith("tributary.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match="tributary.transformers needs torch and transformers"):
        import tributary.transformers  # noqa: F401
