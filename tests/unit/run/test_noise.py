"""TensorFlow's noise, and what must not be taken for it."""

from __future__ import annotations

import pytest

from gridtf.run.noise import Noise

# printed by TensorFlow 2.21 without GPUs, in the jobs of examples/
OF_2_21 = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795801395.635739   17122 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate flags.
I0000 00:00:1795801400.740570   17122 coordination_service.cc:221] Initializing CoordinationService
I0000 00:00:1795801400.744513   17122 grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:38873
I0000 00:00:1795801400.842411   17681 coordination_service.h:529] /job:worker/replica:0/task:0 has connected to coordi
I0000 00:00:1795801400.842474   17681 coordination_service.cc:502] Waiting for 1/2 tasks to connect.
I0000 00:00:1795801400.842488   17681 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
I0000 00:00:1795801400.843107   17122 coordination_service_agent.cc:245] Coordination agent has successfully connected.
I0000 00:00:1795.10   17 coordination_service.cc:1472] Barrier(WaitForAllTasks::1::0) has passed with status: OK
I0000 00:00:1795801421.926698   18747 master.cc:243] Scanning workers for devices: 2 total workers
I0000 00:00:1795801421.934677   18747 mlir_graph_optimization_pass.cc:437] MLIR V1 optimization pass is not enabled
W0000 00:00:1795.74   18604 local_rendezvous.cc:412] Local rendezvous is aborting with status: ABORTED: Cleanup 6
W0000 00:00:1795.74   18604 local_rendezvous.cc:412] Local rendezvous is aborting with status: ABORTED: Shutdown
W0000 00:00:1795.67    2808 destroy_tensor_handle_node.h:59] Ignoring an error encountered when deleting remote tensors
I0000 00:00:1795801511.129476   21950 dispatcher_impl.cc:275] Started tf.data with config: goo.gle/debugstr
port: 60299
protocol: "grpc"
fault_tolerant_mode: true

I0000 00:00:1795801591.238528   27128 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto   \n\
device_count {
  key: "CPU"
  value: 1
}

I0000 00:00:1795801529.452655   21948 generator_dataset_op.cc:213] Memory patch applied: M_TRIM_THRESHOLD=128 kb was s
"""
OF_OTHERS = """\
2024-08-20 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see slightly
2024-08-20 10:00:00.2: E external/local_xla/xla/cuda/cuda_dnn.cc:8454] Unable to register cuDNN factory: At
E0000 00:00:1730.1    1234 cuda_blas.cc:1452] Unable to register cuBLAS factory: Attempting to register factory for pl
W0000 00:00:1730.1    1234 computation_placer.cc:177] computation placer already registered. Please check linkage
2024-08-20 10:00:00.3: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
2024-08-20 10:00:00.3: I external/local_xla/xla/stream_executor/cuda/cuda_executor.cc:1015] successful NUMA node read
I0000 00:00:1730.1    1234 service.cc:154]   StreamExecutor device (0): Tesla T4, Compute Capability 7.5
"""
WITHOUT_GPUS = """\
2024-08-20 10:00:00.3: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers on your machine
2024-08-20 10:00:00.3: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:152] failed call to cuInit: INTERN
2023-08-20 10:00:00.3: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1960] Cannot dlopen some GPU libraries. Plea
Skipping registering GPU devices...
"""
# of worker 0 of a MultiWorkerMirroredStrategy, which worked on after fit; worker 1 had ended 10 s before, with 0
LEFT = """\
E0000 00:00:1796069674.892121   14407 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: \
Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to \
debug further. [type.googleapis.com/tensorflow.CoordinationServiceError='\\"\\n\\n\\x06worker\\x10\\x01']
"""
KEPT = """\
step 100 of 600, loss 0.332
port: 8080
E0000 00:00:1795801554.684613   22249 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE:
I0000 00:00:1795.10   17 coordination_service.cc:1472] Barrier(WaitForAllTasks::1::0) has passed with status: INT
W0000 00:00:1795801422.740655   18604 local_rendezvous.cc:412] Local rendezvous is aborting with status: INVALID_ARGUM
I0000 00:00:1730.1    1234 gpu_device.cc:2022] Created device /job:localhost/replica:0/task:0/device:GPU:0 with 13949
2024-08-20 10:00:00.3: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:466] Loaded runtime CuDNN library: 9.
F0000 00:00:1795801395.635739   17122 cpu_feature_guard.cc:227] The TensorFlow library was compiled to use AVX512F, bu
2024-08-20 10:00:00.3: W tensorflow/core/grappler/optimizers/data/auto_shard.cc:776] AUTO sharding policy will apply DAT
WARNING:tensorflow:Using MirroredStrategy eagerly has significant overhead currently.
Traceback (most recent call last):
ValueError: To enable the following instructions: none
To enable the following instructions: see page 3

"""


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize("text", [OF_2_21, OF_OTHERS])
def test_lines_of_tensorflow_s_start_are_noise(text: str, gpus: bool) -> None:
    assert [*Noise(gpus=gpus).without(text.split("\n")[:-1])] == []


def test_missing_gpus_are_noise_in_tasks_without_gpus_alone() -> None:
    lines = WITHOUT_GPUS.splitlines()
    assert [*Noise(gpus=False).without(lines)] == []
    assert [*Noise(gpus=True).without(lines)] == lines


def test_crash_that_tensorflow_supposes_is_noise_where_tasks_have_left() -> None:
    lines = LEFT.splitlines()
    assert [*Noise(gpus=False, left=True).without(lines)] == []
    assert [*Noise(gpus=False).without(lines)] == [lines[0], lines[2]]
    others = [line for line in KEPT.splitlines() if line]
    assert [*Noise(gpus=False, left=True).without(others)] == others


def test_errors_and_the_program_s_own_lines_are_no_noise() -> None:
    lines = KEPT.splitlines()
    assert [*Noise(gpus=False).without(lines)] == lines
    for line in lines:
        assert [*Noise(gpus=False).without([line])] == [line]


def test_a_record_ends_with_an_empty_line_or_one_that_is_no_field() -> None:
    head = "I0000 00:00:1.5   7 eager_service_impl.cc:355] SessionOptions: goo.gle/debugstr"
    noise = Noise(gpus=False)
    assert [*noise.without([head, "port: 1"])] == []
    assert [*noise.without(["port: 2", "", "port: 3"])] == ["port: 3"]
    assert [*noise.without([head, "ValueError: no data", "port: 4"])] == ["ValueError: no data", "port: 4"]


def test_of_a_progress_bar_that_has_a_line_for_each_state_the_last_is_shown() -> None:
    bar = [
        f"\x1b[1m{step:2}/23\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m1s\x1b[0m 40ms/step"
        for step in (1, 9, 23)
    ]
    lines = ["Epoch 1/2", *bar, "Epoch 2/2", *bar, "17/23 of the files are read", "done"]
    assert [*Noise(gpus=False).without(lines)] == ["Epoch 1/2", bar[2], "Epoch 2/2", bar[2], *lines[-2:]]
