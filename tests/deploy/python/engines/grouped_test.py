# Random models with grouped-query attention, which a tier serves as MLA; and the README's example.
import re
import signal

import pytest
import torch
import transformers

import tributary
from models import assert_same, batch, generate, random_prompts, through_tier, tier_of
from program import ROOT, free_ports
from tier import Service, wait_until
from tributary.runner import smollm2_path

FAMILIES = {
    "llama": ("Llama", {}),
    "llama-multi-head": ("Llama", {"num_key_value_heads": 6}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


def make(name, **more):
    family, own = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": 512, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2,
           "num_attention_heads": 6, "num_key_value_heads": 2, "initializer_range": 0.15,
           "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **own, **more})
    torch.manual_seed(5)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_its_own_tokens_and_logits(name, tmp_path):
    model = make(name)
    inputs = batch(*random_prompts(70, 9, 33))
    alone = generate(model, inputs, 16)
    with tier_of(model.config, tmp_path, workers=1) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        assert_same(alone, through_tier(client, model, inputs, 16))


def test_the_example_of_the_readme_runs(tmp_path):
    """With a small model in the place of the one that it names."""
    text = (ROOT / "deploy" / "python" / "README.md").read_text()
    example, = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    command = re.search(r"^tributary (up --shape .*)$", text, re.MULTILINE)[1].split()
    path = smollm2_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.save_pretrained(tmp_path)
    make("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    shape, = (word for word in command if word.endswith("config.json"))
    service = Service([*(str(tmp_path / "config.json") if word == shape else word
                         for word in command), "--listen", listen, "--kv-gib", "0.1"])
    try:
        def ready():
            assert service.alive(), service.output()
            return "ready with 2 workers" in service.output()
        wait_until(ready, "the service is up")
        for before, after in (("http://127.0.0.1:7300", f"http://{listen}"),
                              ("HuggingFaceTB/SmolLM2-135M-Instruct", str(tmp_path))):
            assert before in example
            example = example.replace(before, after)
        names = {}
        exec(compile(example, "README.md", "exec"), names)
        assert names["tokens"].shape[0] == 2
        assert names["cache"].sequences == []
        service.signal(signal.SIGINT)
        service.wait()
    finally:
        service.close()
