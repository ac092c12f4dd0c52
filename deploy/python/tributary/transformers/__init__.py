# Makes the attention implementation known to transformers, and imports what programs use.
"""transformers with its cache in a decode tier, by its public extension points alone.

Importing this registers the attention implementation "tributary": an attention function and its
mask. A model that was loaded with ``attn_implementation="tributary"`` takes a `TributaryCache` as
``past_key_values``: it computes its prompts itself, their rows go to the tier, and from then on the
tier attends. Where the pool has the model's weights, use_pool_weights() leaves the whole attention
module to it.
"""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "tributary.transformers needs torch and transformers (5.23 or later), which are not "
        f"dependencies of the package: pip install torch transformers ({_error})",
        name=_error.name) from None

from .attention import register as _register
from .cache import TributaryCache
from .weights import PoolAttention, use_pool_weights

_register()

__all__ = ["PoolAttention", "TributaryCache", "use_pool_weights"]
