# Another version of vLLM: what differs is named, what was not tested is warned of.
import types

import pytest
import torch
import vllm

from tributary.vllm.interface import check_interface


class Theirs:
    def begin(self, request, tokens):
        pass

    @classmethod
    def of(cls, spec):
        pass


class Good(Theirs):
    begin, of = vars(Theirs)["begin"], vars(Theirs)["of"]

    def _own(self):
        pass


class Bad(Theirs):
    def begin(self, request):
        pass

    @classmethod
    def of(cls, shape):
        pass

    def end(self):
        pass


def test_the_installed_version_is_served(caplog):
    from tributary.vllm.backend import (TributaryBackend, TributaryImpl,
                                        TributaryMetadataBuilder)
    from tributary.vllm.connector import TributaryConnector
    check_interface(Good, TributaryConnector, TributaryBackend, TributaryMetadataBuilder,
                    TributaryImpl)
    assert not caplog.records


def test_absorbed_weights_are_the_same_and_contiguous():
    from tributary.vllm.backend import lay_out_weights
    strided = torch.randn(512, 4, 128).permute(1, 2, 0)
    layer = types.SimpleNamespace(W_UK_T=torch.nn.Parameter(strided, requires_grad=False), W_UV=None)
    lay_out_weights(layer)
    assert layer.W_UK_T.is_contiguous() and torch.equal(layer.W_UK_T, strided)
    lay_out_weights(types.SimpleNamespace())  # another version's layer


def test_a_version_that_was_not_tested_is_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    monkeypatch.setattr("tributary.vllm.interface.log.propagate", True)
    check_interface(Good)
    assert "vLLM 0.33.1 was not tested with tributary.vllm, 0.32.x was" in caplog.text


def test_methods_that_differ_are_refused_by_name():
    with pytest.raises(RuntimeError) as refused:
        check_interface(Good, Bad)
    assert str(refused.value).endswith(
        "begin(self, request, tokens), expected (self, request); of(cls, spec), expected "
        "(cls, shape); no end()")
