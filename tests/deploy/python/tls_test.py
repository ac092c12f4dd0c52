# A tier whose control plane and data plane are TLS, and that asks for a token and a certificate.
import subprocess

import numpy
import pytest

import tributary
from program import free_ports
from tier import Service, wait_until

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate that is its own authority, its key, and a token."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key, token = folder / "both.pem", folder / "both.key", folder / "token"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=t",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    key.chmod(0o600)
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    return certificate, key, token


@pytest.fixture(scope="module")
def url(files):
    certificate, key, token = files
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    service = Service(["up", "--listen", listen, "--workers", "2", "--kv-gib", "0.05",
                       "--rows", "f32", "--query", "f32", "--tls-certificate", certificate,
                       "--tls-key", key, "--ca", certificate, "--client-ca", certificate,
                       "--token-file", token])
    try:
        def ready():
            assert service.alive(), service.output()
            return "ready with 2 workers" in service.output()
        wait_until(ready, "the service is up")
        yield f"https://{listen}"
    finally:
        service.close()


def step(client):
    with client.admit(3, 4) as sequence:
        sequence.push(0, 0, numpy.ones((3, 576), numpy.float32))
        sequence.wait_ready()
        assert all(address.startswith("tls://") for address in sequence.workers)
        with client.step([sequence]) as step:
            o, _ = step.attend(0, numpy.ones((1, 16, 576), "f4"), numpy.ones((1, 576), "f4"))
        return float(o[0, 0, 0])


def test_a_client_of_an_encrypted_tier(url, files):
    certificate, key, _ = map(str, files)
    trust = {"certificate_authority": certificate}
    shown = {"tls_certificate": certificate, "tls_key": key}
    assert step(tributary.Client(url, TOKEN, **trust, **shown)) == 1.0
    with pytest.raises(tributary.PermissionDenied):
        step(tributary.Client(url, **trust, **shown))
    with pytest.raises(tributary.Error):  # trusts others
        step(tributary.Client(url, TOKEN, timeout=5.0))
    with pytest.raises(tributary.Error):  # shows no certificate to the workers
        step(tributary.Client(url, TOKEN, timeout=5.0, **trust))
