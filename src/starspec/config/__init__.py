"""The settings of each process: frozen dataclasses, one for each concern, with units in the names.

A field's annotation also states its command-line option (see `option.py`). A flag wins over a file, and a file over the
default. An unknown key is an error that names the nearest known key.
"""

from starspec.config.checks import build, nearest, without_vllm_defaults
from starspec.config.gateway import GatewayConfig
from starspec.config.hub import (
    MIN_LEASE_S,
    Admission,
    AheadMode,
    HubConfig,
    MaxBatch,
    PrefixScope,
    RunAhead,
    Scheduling,
)
from starspec.config.limits import (
    MAX_DRAFT_TOKENS,
    MAX_FEATURE_LAYERS,
    MAX_STOP_LEN,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
)
from starspec.config.model import DEFAULT_MAX_MODEL_LEN, Dtype, ModelConfig, Numerics, Quantization
from starspec.config.option import Option
from starspec.config.process import (
    SERVERS,
    GatewayProcess,
    HubProcess,
    LogLevel,
    ProcessConfig,
    ServerConfig,
    StageProcess,
    TargetProcess,
)
from starspec.config.speculative import (
    FIXED_LENGTH,
    LengthConfig,
    Policy,
    RemoteConfig,
    SpeculativeConfig,
    is_suited,
)
from starspec.config.stages import PipeConfig, StageConfig
from starspec.config.target import (
    BATCHINGS,
    MAX_PASSED_OVER,
    MIN_GROUP,
    MIN_SERVING_LEASE_S,
    WINDOW_BATCHES,
    BatchAdmission,
    BatchingConfig,
    BatchingMethod,
    TargetConfig,
)
from starspec.config.thresholds import Calibration, read_calibration
from starspec.speculation.acceptance import SampleMethod

__all__ = [
    "BATCHINGS",
    "DEFAULT_MAX_MODEL_LEN",
    "FIXED_LENGTH",
    "MAX_DRAFT_TOKENS",
    "MAX_FEATURE_LAYERS",
    "MAX_PASSED_OVER",
    "MAX_STOP_LEN",
    "MAX_TOP_K",
    "MAX_TOP_LOGPROBS",
    "MIN_GROUP",
    "MIN_LEASE_S",
    "MIN_SERVING_LEASE_S",
    "SERVERS",
    "WINDOW_BATCHES",
    "Admission",
    "AheadMode",
    "BatchAdmission",
    "BatchingConfig",
    "BatchingMethod",
    "Calibration",
    "Dtype",
    "GatewayConfig",
    "GatewayProcess",
    "HubConfig",
    "HubProcess",
    "LengthConfig",
    "LogLevel",
    "MaxBatch",
    "ModelConfig",
    "Numerics",
    "Option",
    "PipeConfig",
    "Policy",
    "PrefixScope",
    "ProcessConfig",
    "Quantization",
    "RemoteConfig",
    "RunAhead",
    "SampleMethod",
    "Scheduling",
    "ServerConfig",
    "SpeculativeConfig",
    "StageConfig",
    "StageProcess",
    "TargetConfig",
    "TargetProcess",
    "build",
    "is_suited",
    "nearest",
    "read_calibration",
    "without_vllm_defaults",
]
