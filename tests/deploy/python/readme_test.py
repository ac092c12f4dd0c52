# The Python that README files show runs as shown, with `tributary up` as they say.
import re
import signal

import pytest

from program import ROOT, free_ports
from tier import Service, wait_until


@pytest.fixture(scope="module")
def up():
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    service = Service(["up", "--listen", listen, "--workers", "2", "--kv-gib", "0.05", "--rows", "f32",
                       "--query", "f32"])
    try:
        def ready():
            assert service.alive(), service.output()
            return "ready with 2 workers" in service.output()
        wait_until(ready, "the service is up")
        yield f"http://{listen}"
        service.signal(signal.SIGINT)
        service.wait()
    finally:
        service.close()


URL = "http://127.0.0.1:7300"


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page, lines", [("README.md", 5), ("deploy/python/README.md", None)])
def test_the_python_of_a_page_runs(up, page, lines):
    (block,) = [block for block in blocks_of(page) if URL in block]
    assert lines in (None, block.count("\n"))
    names = {}
    exec(compile(block.replace(URL, up), page, "exec"), names)
    assert names["o"].shape[1:] == (16, 512) and names["lse"].shape[1:] == (16,)
    names["sequence"].free()


def test_flash_mlas_functions_run_as_shown():
    (block,) = [block for block in blocks_of("deploy/python/README.md") if "flash_mla" in block]
    names = {}
    exec(compile(block, "deploy/python/README.md", "exec"), names)
    assert names["out"].shape == (2, 1, 16, 512) and names["lse"].shape == (2, 16, 1)
    # All rows are the same: the mean of values is 1, and only their number tells.
    assert (abs(names["v"] - 1) < 1e-5).all() and (names["s"] > names["lse"][:, :, 0]).all()


def test_the_pool_of_the_page_runs(capsys):
    (block,) = [block for block in blocks_of("deploy/python/README.md") if "tributary.Pool" in block]
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == "".join(
        line + "\n" for line in re.search(r"# of each worker: (.*), then (.*)", block).groups())
