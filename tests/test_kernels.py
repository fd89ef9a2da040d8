import pytest
from benchmarks import kernels


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc", "weight gradients of convolutions"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "input gradients of convolutions"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_op", "convolutions forward"),
        ("void convolve_common_engine_float_NHWC<__nv_bfloat16>", "convolutions forward"),
        ("triton_red_fused__native_batch_norm_legit", "batch norm, activation, augmentation, losses (fused)"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<a>", "optimiser"),
        ("void cask_plugin__5x_cudnn::init_device_workspace_kernel", "copies and fills"),
        ("nvjet_hsh_128x256", "matrix products"),
        ("something else", kernels.OTHER),
    ],
)
def test_kernels_are_grouped_by_what_they_do(kernel: str, group: str) -> None:
    assert kernels.group_of(kernel) == group


def test_times_are_summed_per_step() -> None:
    found = kernels.milliseconds_per_step([("a_fprop", 4000.0), ("triton_x", 9000.0), ("b_fprop", 2000.0)], 0.02, 10)
    assert list(found) == ["batch norm, activation, augmentation, losses (fused)", "convolutions forward", kernels.IDLE]
    assert found == pytest.approx(dict(zip(found, [0.9, 0.6, 0.5], strict=True)))


def test_overlapping_kernels_leave_no_negative_rest() -> None:
    assert kernels.milliseconds_per_step([("a_fprop", 40_000.0)], 0.02, 10)[kernels.IDLE] == 0
