"""What torch asks of the C++ compiler before it compiles for a CPU, asked once."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def torch_knows_its_compiler() -> None:
    """What g++ can do for this CPU, found out where torch itself keeps it.

    Else each process compiles that into the folder of its first model: eight seconds of a core.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
        pick_vec_isa()
