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


@pytest.mark.parametrize("page, lines", [("README.md", 5), ("deploy/python/README.md", None)])
def test_the_python_of_a_page_runs(up, page, lines):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    assert lines in (None, blocks[0].count("\n"))
    assert "http://127.0.0.1:7300" in blocks[0]
    names = {}
    exec(compile(blocks[0].replace("http://127.0.0.1:7300", up), page, "exec"), names)
    assert names["o"].shape[1:] == (16, 512) and names["lse"].shape[1:] == (16,)
    names["sequence"].free()
