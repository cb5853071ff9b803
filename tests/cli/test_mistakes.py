"""A mistake on the command line is one clear sentence on stderr, and exit code 2."""

import pytest

GENERATE = ("generate", "Hello", "--target", "synthetic:")
STAGED = ("target", "--target", "x", "--stages")

MISTAKES = {
    "unknown option": (
        ("up", "--target", "x", "--speculative-confg", "{}"),
        "no such option: --speculative-confg; did you mean '--speculative-config'? (see starspec up --help)",
    ),
    "unknown command": (("drat",), "no such command 'drat'. Did you mean 'draft'? (see starspec --help)"),
    "missing option": (
        ("target", "x"),
        "missing option '--target' / '--model': give the model as --target MODEL (see starspec target --help)",
    ),
    "a draft without its option": (
        ("draft", "x"),
        "got unexpected extra argument(s) (x): give the draft as --draft MODEL (see starspec draft --help)",
    ),
    "a prompt without quotes": (
        ("generate", "Hello", "there", "--target", "x"),
        "got unexpected extra argument(s) (there): put a prompt of several words into quotes",
    ),
    "models of the doctor without options": (
        ("doctor", "x", "y"),
        "(x y): give the models as --target MODEL --draft MODEL (see starspec doctor --help)",
    ),
    "a version as a command": (("version",), "no such command 'version'; did you mean 'starspec --version'?"),
    "a temperature to verify at": (
        ("verify", "--target", "x", "--temp", "1"),
        "no such option: --temp; greedy and sampled answers are both compared",
    ),
    "a served name of spaces": (("up", "x", "--served-model-name", " "), "--served-model-name ' ' is not a name"),
    "a served name of two lines": (
        ("gateway", "--target", "x", "--endpoint", "tcp://a:1", "--served-model-name", "a\nb"),
        "--served-model-name 'a\\nb' is not a name: it must be letters, digits and any of . _ - / : @ + between them",
    ),
    "a target's name with a path": (("target", "--target", "x", "--name", "b/.."), "--name 'b/..' is not a name"),
    "a target's name with a space": (("target", "--target", "x", "--name", "a b"), "--name 'a b' is not a name"),
    "options of a draft without one": (
        (*GENERATE, "--draft-quantization", "int4"),
        "options of drafting need a draft: give --draft MODEL, or --spec-method ngram",
    ),
    "options of a draft that is compared": (
        ("verify", "--target", "x", "--spec-tokens", "3"),
        "options of drafting need a draft: give --draft MODEL, or --spec-method ngram",
    ),
    "another missing option": (
        ("calibrate", "--target", "x"),
        "missing option '--draft' / '--spec-model'. (see starspec calibrate --help)",
    ),
    "no model": (
        ("up",),
        "give the targets' model: starspec up MODEL, or --target MODEL, a Hugging Face folder, hub id, .gguf file, or",
    ),
    "two models": (
        ("up", "x", "--target", "y"),
        "the targets' model is given twice, as 'x' and as --target 'y': give one",
    ),
    "two models, as vLLM names them": (("serve", "x", "--model", "y"), "the targets' model is given twice"),
    "an option twice": (
        ("target", "--target", "x", "--hub", "tcp://a:1", "--hub", "tcp://b:1"),
        "--hub is given twice: give it once (see starspec target --help)",
    ),
    "an option twice under two names": (
        ("up", "x", "--draft", "y", "--spec-model", "y"),
        "--draft / --spec-model is given twice",
    ),
    "on and off": (("up", "x", "--table", "--no-table"), "--table / --no-table is given twice: give it once"),
    "an option of a group of commands twice": (("bench", "wire", "--quick", "--quick"), "--quick is given twice"),
    "an option before its command": (
        ("--log-level", "debug", "up", "x"),
        "--log-level is an option of commands: write it behind the command's name",
    ),
    "an option before its command in a group": (("bench", "--quick", "wire"), "--quick is an option of commands"),
    "value of the wrong kind": (("up", "--target", "x", "--targets", "two"), "invalid value for '--targets'"),
    "an option of another command": (
        ("target", "--target", "x", "--draft", "y"),
        "no such option: --draft; the draft belongs to the hub: starspec draft --draft MODEL, and here --hub",
    ),
    "a value that is no number": ((*GENERATE, "--temperature", "1.x"), "should be a valid number, not '1.x'"),
    "a value that is no number, with =": ((*GENERATE, "--temperature=1.x"), "should be a valid number, not '1.x'"),
    "keys in no folder": (("keygen", ""), "'FOLDER': the name of a folder is empty"),
    "a head in no folder": (("train", "--out", ""), "'--out': the name of a folder is empty"),
    "traces in no folder": (("bench", "star", "--traces", ""), "'--traces': the name of a folder is empty"),
    "value out of range": (("up", "--target", "x", "--targets", "0"), "invalid value for '--targets'"),
    "unknown choice": (("up", "--target", "x", "--dtype", "int3"), "'--dtype': 'int3' is not one of"),
    "unknown method": (
        (*GENERATE, "--speculative-config", '{"method": "ngrams"}'),
        "speculative config: method 'ngrams' is unknown; did you mean 'ngram'?",
    ),
    "unknown key": (
        (*GENERATE, "--speculative-config", '{"modle": "x"}'),
        "speculative config: unknown key 'modle'; did you mean 'model'?",
    ),
    "unknown key inside": (
        (*GENERATE, "--speculative-config", '{"remote": {"endpont": "x"}}'),
        "unknown key 'endpont'; did you mean 'endpoint'?",
    ),
    "no JSON": (
        (*GENERATE, "--speculative-config", '{"model": x}'),
        "--speculative-config is not valid JSON: expecting value at character 11, before 'x}'",
    ),
    "JSON cut off": ((*GENERATE, "--speculative-config", '{"model": '), "expecting value at its end"),
    "JSON nested too deeply": (
        (*GENERATE, "--speculative-config", '{"a": ' * 5000),
        "--speculative-config cannot be read: it is nested too deeply",
    ),
    "a number of many digits": (
        (*GENERATE, "--speculative-config", '{"num_speculative_tokens": %s}' % ("9" * 5000)),
        "--speculative-config cannot be read: it has an integer of 5000 digits",
    ),
    "a key twice": (
        (*GENERATE, "--speculative-config", '{"method": "ngram", "method": "draft_model"}'),
        "--speculative-config cannot be read: it has the key 'method' 2 times",
    ),
    "a key in two spellings": (
        (*GENERATE, "--speculative-config", '{"draft_p_min": 0.1, "draft-p-min": 0.2}'),
        "--speculative-config has a key twice, once with - and once with _: give it once",
    ),
    "JSON, but no object": ((*GENERATE, "--speculative-config", "[1]"), "must be a JSON object"),
    "relaxed without probabilities": (
        ("up", "x", "--spec-method", "ngram", "--allow-relaxed"),
        "--allow-relaxed compares the probabilities of draft and target, and method 'ngram' has none",
    ),
    "thresholds for nothing": (
        ("target", "--target", "x", "--relaxed-thresholds", "t.json"),
        "--relaxed-thresholds has no effect without --allow-relaxed: give both, or none",
    ),
    "thresholds that are not there": (
        ("up", "x", "--draft", "y", "--allow-relaxed", "--relaxed-thresholds", "/nowhere.json"),
        "--relaxed-thresholds: '/nowhere.json' cannot be read: No such file or directory",
    ),
    "no tokens may be key": (
        ("calibrate", "--target", "x", "--draft", "y", "--key-share", "0"),
        "--key-share must be above 0 and below 1, got 0",
    ),
    "a request for ever": (
        ("up", "x", "--request-timeout", "inf"),
        "invalid value for --request-timeout: a finite number, not inf",
    ),
    "a shutdown for ever": (
        ("up", "x", "--shutdown-timeout", "inf"),
        "invalid value for --shutdown-timeout: a finite number, not inf",
    ),
    "a start for ever": (
        ("up", "x", "--start-timeout", "inf"),
        "invalid value for --start-timeout: a finite number, not inf",
    ),
    "a connection for ever": (
        ("gateway", "--target", "x", "--endpoint", "tcp://a:1", "--idle-timeout", "inf"),
        "invalid value for --idle-timeout: a finite number, not inf",
    ),
    "a temperature below zero": (
        ("bench", "grammar", "--target", "x", "--draft", "y", "--temperatures", "0,-1"),
        "invalid value for --temperatures: numbers from 0 on, not -1.0",
    ),
    "a temperature twice": (
        ("bench", "grammar", "--target", "x", "--draft", "y", "--temperatures", "0,1,0.0"),
        "invalid value for --temperatures: 0.0 is given twice: give each number once",
    ),
    "a batch size twice": (
        ("bench", "length", "--target", "x", "--draft", "y", "--batch-sizes", "4,04"),
        "invalid value for --batch-sizes: 4 is given twice: give each number once",
    ),
    "a method twice": (
        ("bench", "batch", "--target", "x", "--draft", "y", "--methods", "plain,ragged, plain"),
        "--methods names 'plain' twice: name each once",
    ),
    "a way of batching twice": (
        ("verify", "--target", "x", "--draft", "y", "--batching", "ragged,ragged"),
        "--batching names 'ragged' twice: name each once",
    ),
    "a file of prompts twice": (
        ("bench", "pair", "--target", "x", "--draft", "y", "--dataset", __file__, "--dataset", f"/.{__file__}"),
        "' twice: give each file once",
    ),
    "nothing is learnt": (
        ("train", "--target", "x", "--prompts", "y", "--out", "./z", "--learning-rate", "0"),
        "invalid value for '--learning-rate'",
    ),
    "more schemas than there are": (
        ("bench", "grammar", "--target", "x", "--draft", "y", "--num-schemas", "61"),
        "invalid value for '--num-schemas'",
    ),
    "two models of one name": (
        ("gateway", "--target", "a/x", "--also", "b/x", "--endpoint", "tcp://127.0.0.1:1"),
        "--also: the models need different names in the API, and have x, x",
    ),
    "another model of the served name": (
        ("gateway", "--target", "x", "--also", "m=y", "--served-model-name", "m", "--endpoint", "tcp://127.0.0.1:1"),
        "--also: the models need different names in the API, and have m, m",
    ),
    "another model by no name": (
        ("gateway", "--target", "x", "--also", "a b=y", "--endpoint", "tcp://127.0.0.1:1"),
        "--also: the name 'a b' is not a name",
    ),
    "a delay below zero": (
        ("bench", "shard", "--target", "x", "--draft", "y", "--delays", "-5"),
        "invalid value for --delays: numbers from 0 on, not -5.0",
    ),
    "a delay of hours": (
        ("bench", "shard", "--target", "x", "--draft", "y", "--delays", "1e7"),
        "invalid value for --delays: numbers up to 60000, not 10000000.0",
    ),
    "a batch that nothing holds": (
        ("bench", "batch", "--target", "x", "--draft", "y", "--batch-sizes", "9" * 400),
        "invalid value for --batch-sizes: numbers up to 1000000000, not 999",
    ),
    "more draft tokens than a proposal has": (
        ("bench", "batch", "--target", "x", "--draft", "y", "--num-draft-tokens", "65"),
        "invalid value for '--num-draft-tokens'",
    ),
    "more targets than a hub admits": (
        ("bench", "star", "--target", "x", "--draft", "y", "--num-targets", "65"),
        "invalid value for --num-targets: numbers up to 64, not 65",
    ),
    "arguments with half of a quotation": (
        ("bench", "vllm", "--target", "x", "--draft", "y", "--vllm-args", "--enforce-eager '"),
        'invalid value for --vllm-args: words of a command line, not "--enforce-eager \'": no closing quotation',
    ),
    "a list without end": (
        ("bench", "tree", "--target", "x", "--draft", "y", "--temperatures", "0,inf"),
        "invalid value for --temperatures: finite numbers, not 0,inf",
    ),
    "a batch of many digits": (("draft", "--draft", "x", "--max-batch", "9" * 5000), "--max-batch must be auto or a"),
    "too hot a chat": (("chat", "--temperature", "inf"), "--temperature must be at least 0 and finite, got inf"),
    "too hot": ((*GENERATE, "--temperature", "inf"), "--temperature must be at least 0 and finite, got inf"),
    "too cold": ((*GENERATE, "--temperature", "-1"), "--temperature must be at least 0 and finite, got -1.0"),
    "more than everything": ((*GENERATE, "--top-p", "2"), "--top-p must be in (0, 1], got 2.0"),
    "a share that is none": ((*GENERATE, "--min-p", "nan"), "--min-p must be in [0, 1], got nan"),
    "no answer": ((*GENERATE, "--max-tokens", "0"), "--max-tokens must be at least 1, got 0"),
    "no seed": ((*GENERATE, "--seed", "-1"), "--seed must be in [0, 2**63), got -1"),
    "a stop that stops at once": ((*GENERATE, "--stop", ""), "--stop must be at most 16 non-empty strings"),
    "a long stop": ((*GENERATE, "--stop", "x" * 10_001), "a --stop string has at most 10000 characters"),
    "said twice": (
        (*GENERATE, "--draft", "a", "--speculative-config", '{"model": "b"}'),
        "--draft and 'model' in --speculative-config say the same thing: give one of them",
    ),
    "value out of range in JSON": (
        (*GENERATE, "--speculative-config", '{"num_speculative_tokens": 65}'),
        "num_speculative_tokens must be 0 to 64",
    ),
    "an option that would do nothing": (
        ("up", "--target", "x", "--window", "9"),
        "--window, --max-passed-over and --min-group are for --batching exspec, not ragged",
    ),
    "a star told how to draft, and not with what": (
        ("up", "--target", "x", "--draft-quantization", "int4"),
        "a star that is told how to draft needs a draft: give --draft MODEL, or --spec-method ngram",
    ),
    "no link": (("lab",), "a lab needs links: give FILE, or --link LISTEN=tcp://HOST:PORT"),
    "a link to nowhere": (
        ("lab", "--link", "7700"),
        "--link must be LISTEN=tcp://HOST:PORT, as in 7700=tcp://127.0.0.1:7701, not '7700'",
    ),
    "links in a file and beside it": (
        ("lab", "x.toml", "--delay-ms", "4"),
        "FILE describes all links: write delay_ms there, or give --link instead of FILE",
    ),
    "an unknown kind of link": (
        ("lab", "--link", "0=tcp://127.0.0.1:9", "--preset", "continent"),
        "the link: preset 'continent' is unknown; did you mean 'continents'?",
    ),
    "a stall of packets that are not lost": (
        ("lab", "--link", "0=tcp://127.0.0.1:9", "--preset", "metro", "--stall-ms", "4"),
        "the link: stall_ms is how long a lost packet stalls, and none is lost: give loss, too",
    ),
    "completion for another shell": (
        ("--install-completion", "tcsh"),
        "--install-completion is for the shell that it is called from, and takes no 'tcsh' (see starspec --help)",
    ),
    "keys for a hub that is not there": (
        ("target", "--target", "synthetic:", "-sc", '{"method": "ngram", "remote": {"keys": "k", "insecure": true}}'),
        "remote.keys, remote.insecure: for a hub, and method 'ngram' without --hub has none: leave it out",
    ),
    "a partition without an end": (
        ("lab", "--link", "0=tcp://127.0.0.1:9", "--partition", "9"),
        "--partition must be START-STOP in seconds, as in 10-15, not '9'",
    ),
    "a lab for everybody": (
        ("lab", "--link", "0.0.0.0:0=tcp://127.0.0.1:9"),
        "the lab would listen on 0.0.0.0 and pass on whatever comes: say --insecure to allow it",
    ),
    "no layers": (("stage", "--model", "x"), "missing option '--layers'. (see starspec stage --help)"),
    "no endpoint": (
        ("stage", "--model", "x", "--layers", "0:3", "--listen", "7900"),
        "--listen must be of the form tcp://HOST:PORT, as in tcp://127.0.0.1:7900, not '7900'",
    ),
    "no endpoint of the next stage": (
        ("stage", "--model", "x", "--layers", "0:3", "--next", "tcp://a:99999"),
        "--next: a port must be 1 to 65535, not 99999",
    ),
    "a stage twice": (
        (*STAGED, "tcp://a:1,tcp://b:1,tcp://a:1"),
        "stage tcp://a:1 is listed twice in --stages and --spares: each holds its layers once",
    ),
    "no endpoints of stages": ((*STAGED, "a:1"), "--stages must be of the form tcp://HOST:PORT"),
    "stages of padded batches": (
        (*STAGED, "tcp://a:1", "--batching", "eqspec"),
        "--stages needs --batching ragged: 'eqspec' moves keys and values, which stages keep",
    ),
    "threads of stages elsewhere": (
        (*STAGED, "tcp://a:1", "--num-threads", "2", "--numerics", "fast"),
        "--numerics, --num-threads: the stages run the model; leave it out here, and give it to them",
    ),
    "stages and hidden states": (
        (*STAGED, "tcp://a:1", "--spec-method", "eagle3", "--hub", "tcp://127.0.0.1:9"),
        "method 'eagle3' needs the target's hidden states, and with --stages they stay at the stages",
    ),
    "stages of a star with a head": (
        ("up", "x", "--stages", "2", "--draft", "y", "--spec-method", "eagle3"),
        "method 'eagle3' needs the target's hidden states, and with --stages they stay at the stages",
    ),
    "in flight to nowhere": (
        ("target", "--target", "x", "--in-flight", "3"),
        "--in-flight: about stages, and the model runs here; give --stages too",
    ),
    "time for no stages": (
        ("target", "--target", "x", "--start-timeout", "9", "--stage-wait", "9", "--stage-silence", "9"),
        "--start-timeout, --stage-wait, --stage-silence: about stages, and the model runs here; give --stages too",
    ),
    "far stages without keys": (
        ("target", "--target", "synthetic:", "--port", "0", "--stages", "tcp://far.example:1"),
        "the target would connect to the stage at far.example without keys",
    ),
    "a plan without machines": (("plan-stages", "--model", "x"), "missing option '--node'."),
    "a link from a machine to itself": (
        ("plan-stages", "--model", "x", "--node", "a=1GiB", "--link", "a-a=3"),
        "--link a-a=3 leads from a machine to itself: leave it out",
    ),
    "a link twice": (
        ("plan-stages", "--model", "x", "--node", "a=1GiB", "--link", "a-target=3", "--link", "target-a=4"),
        "--link gives the link between 'a' and 'target' twice, and a link has one number",
    ),
    "a machine without memory": (
        ("plan-stages", "--model", "x", "--node", "a"),
        "--node must be NAME=MEMORY or NAME=MEMORY,MS, as in a=8GiB,2.5, not 'a'",
    ),
    "a link to no machine": (
        ("plan-stages", "--model", "x", "--node", "a=1GiB", "--link", "a-b=3"),
        "--link names the machine 'b', which no --node describes",
    ),
    "no draft": (("draft",), "a draft server needs a draft: give --draft MODEL, or --spec-method ngram"),
    "missing model": (("draft", "--draft", "/no/such/model", "--port", "0"), "there is no model at '/no/such/model'"),
    "address without keys": (
        ("draft", "--spec-method", "ngram", "--host", "0.0.0.0"),
        "the hub would listen on 0.0.0.0 without keys",
    ),
    "no ports": (("draft", "--spec-method", "ngram", "--data-ports", "9"), "--data-ports must be FIRST-LAST"),
    "ports backwards": (
        ("draft", "--spec-method", "ngram", "--data-ports", "9-5"),
        "--data-ports must be within 1-65535 and not end before it begins, as in 7701-7764, not '9-5'",
    ),
    "ports beyond the last": (
        ("draft", "--spec-method", "ngram", "--data-ports", "9-99999"),
        "--data-ports must be within 1-65535",
    ),
    "a hub's host that is no address": (
        ("draft", "--spec-method", "ngram", "--host", "300.1.1.1"),
        "--host: '300.1.1.1' is not an IP address, such as 127.0.0.1 or ::1",
    ),
    "a target's host that is no address": (
        ("target", "--target", "synthetic:", "--host", "127.0.0.1:7800"),
        "--host: '127.0.0.1:7800' is not an IP address",
    ),
    "a gateway's host that is no address": (
        ("gateway", "--endpoint", "tcp://127.0.0.1:7800", "--target", "synthetic:", "--host", "300.1.1.1"),
        "--host: '300.1.1.1' is not an IP address",
    ),
    "a star's host that is no address": (
        ("up", "--target", "x", "--host", "1.2.3.4.5"),
        "--host: '1.2.3.4.5' is not an IP address",
    ),
    "an endpoint's port beyond the last": (
        ("gateway", "--endpoint", "tcp://127.0.0.1:99999", "--target", "synthetic:"),
        "a target is at 'tcp://127.0.0.1:99999', and a port must be 1 to 65535",
    ),
    "an endpoint that is no address": (
        ("target", "--target", "synthetic:", "--hub", "tcp://300.1.1.1:7700"),
        "the hub is at 'tcp://300.1.1.1:7700': '300.1.1.1' is not an IP address",
    ),
    "weights": (
        ("draft", "--spec-method", "ngram", "--weights", "target-0"),
        "--weights must be NAME=NUMBER,..., as in target-0=3,target-1=1, not 'target-0'",
    ),
    "a weight for nobody": (
        ("draft", "--spec-method", "ngram", "--weights", "target-0=1, =3"),
        "--weights must be NAME=NUMBER,..., as in target-0=3,target-1=1, not 'target-0=1, =3'",
    ),
    "two weights for one": (
        ("draft", "--spec-method", "ngram", "--weights", "target-0=5, target-0 =6"),
        "--weights names 'target-0' twice, in 'target-0=5, target-0 =6': give it one number",
    ),
    "a weight out of range": (
        ("draft", "--spec-method", "ngram", "--weights", "target-0=0"),
        "the weight of 'target-0' must be 0.01 to 100, got 0",
    ),
    "an objective without a number": (
        ("draft", "--spec-method", "ngram", "--slo-round-ms", "target-0"),
        "--slo-round-ms must be NAME=NUMBER,..., as in target-0=3,target-1=1, not 'target-0'",
    ),
    "an objective that would do nothing": (
        ("draft", "--spec-method", "ngram", "--slo-round-ms", "a=40", "--scheduling", "fifo"),
        "--slo-round-ms needs fair scheduling",
    ),
    "no rate": (
        ("draft", "--spec-method", "ngram", "--rate-limit", "a=0"),
        "--rate-limit must be above 0, that of 'a'",
    ),
    "a host that none can be": (
        ("draft", "--spec-method", "ngram", "--host", "h" * 64),
        f"--host: '{'h' * 64}' is not the name of a host",
    ),
    "a link that no host can listen on": (
        ("lab", "--link", f"{'h' * 64}:0=tcp://127.0.0.1:9", "--insecure"),
        f"'{'h' * 64}' is not the name of a host",
    ),
    "a child without its parent": (("child", "nobody", "x"), "`starspec child` is for `starspec up`: use draft"),
    "weights of nothing": (
        (*GENERATE, "--spec-method", "ngram", "--draft-quantization", "int4"),
        "quantization: for drafts with a model, and method 'ngram' has none: leave it out",
    ),
    "threads of nothing": (
        ("draft", "--spec-method", "ngram", "--num-threads", "2"),
        "--num-threads, --max-num-seqs, --kv-budget are for draft models, and method 'ngram' has none: leave them out",
    ),
    "a target of nothing": (
        ("draft", "--spec-method", "ngram", "--target", "x"),
        "--target, --dtype, --device, --max-model-len, --num-threads, --max-num-seqs, --kv-budget are for draft models",
    ),
    "a length of all targets": (
        (
            "draft",
            "--draft",
            "x",
            "--speculative-config",
            '{"num_speculative_tokens": 3, "length": {"policy": "fixed"}}',
        ),
        "num_speculative_tokens, length: each target says that for itself: leave it out here, and give it to starspec",
    ),
    "n-grams of a model": (
        ("draft", "--draft", "x", "--speculative-config", '{"prompt_lookup_max": 9}'),
        "prompt_lookup_max: each target says that for itself",
    ),
    "a draft at a target": (
        (
            *("target", "--target", "synthetic:", "--hub", "tcp://127.0.0.1:9"),
            *("--speculative-config", '{"model": "x", "quantization": "int4", "max_model_len": 9}'),
        ),
        "model, quantization, max_model_len: the hub has the draft, and is told what it is and how it runs: leave it",
    ),
    "a device of no draft": (
        ("up", "x", "--draft-device", "cpu", "--draft-num-threads", "1"),
        "--draft-device and --draft-num-threads: for draft models, and there is none here; leave it out, or give",
    ),
    "threads of n-grams": (
        ("up", "x", "--spec-method", "ngram", "--draft-num-threads", "1"),
        "--draft-num-threads: for draft models, and there is none here",
    ),
    "a deadline that is no number": (
        (
            *("target", "--target", "synthetic:", "--hub", "tcp://127.0.0.1:9"),
            *("--speculative-config", '{"remote": {"deadline_ms": NaN}}'),
        ),
        "remote.deadline_ms must be positive and at most 1000000000, got nan",
    ),
    "a number that is no text": (
        (*GENERATE, "--max-tokens", "5\udcff"),
        "invalid value for '--max-tokens': it is not valid Unicode text: give it in UTF-8",
    ),
    "a trace without end": (("trace", "summarize", "/dev/full"), "'/dev/full', which is FILE, never ends: name a file"),
    "prompts without end": (
        ("doctor", "--target", "x", "--draft", "y", "--prompts", "/dev/zero"),
        "'/dev/zero', which is --prompts, never ends: name a file",
    ),
    "half a batch": (("draft", "--spec-method", "ngram", "--max-batch", "0.5"), "--max-batch must be auto or a number"),
    "a draft server's option without one": (("up", "--target", "x", "--run-ahead", "auto"), "give --draft MODEL, or"),
    "a weight of nobody": (
        ("up", "--target", "x", "--spec-method", "ngram", "--weights", "target-7=2"),
        "there is no target 'target-7' in this star; did you mean 'target-",
    ),
    "a star that runs ahead of nothing": (
        ("up", "--target", "x", "--spec-method", "ngram", "--run-ahead", "chain"),
        "--run-ahead chain is for draft models",
    ),
    "running ahead of nothing": (
        ("draft", "--spec-method", "ngram", "--run-ahead", "outcomes", "--port", "0"),
        "--run-ahead outcomes is for draft models",
    ),
    "prefixes of nothing": (
        ("up", "--target", "x", "--spec-method", "ngram", "--share-prefixes", "hub"),
        "--share-prefixes hub is for draft models",
    ),
    "weights that would do nothing": (
        ("draft", "--spec-method", "ngram", "--weights", "a=2", "--scheduling", "fifo"),
        "--weights needs fair scheduling",
    ),
    "admission": (
        ("draft", "--spec-method", "ngram", "--admission", "nmax"),
        "--admission must be off, n_max or a number of targets, not 'nmax'",
    ),
    "memory": (
        ("draft", "--draft", "synthetic:role=draft", "--kv-budget", "2GiBs"),
        "--kv-budget must be an amount of memory, as 512MiB, 2GiB or 1048576, not '2GiBs'",
    ),
    "memory for nobody": (
        ("draft", "--draft", "synthetic:role=draft", "--kv-budget", "1KiB", "--port", "0"),
        "a KV budget of 1024 bytes holds no sequence",
    ),
    "more memory than there is": (
        ("draft", "--draft", "synthetic:role=draft", "--kv-budget", "999999GiB", "--port", "0"),
        "a KV budget of 1073740750258176 bytes is more than this machine's memory",
    ),
    "memory without keys and values": (
        ("draft", "--spec-method", "ngram", "--kv-budget", "1GiB"),
        "--kv-budget is for draft models",
    ),
    "hub elsewhere": (
        ("up", "--target", "x", "--speculative-config", '{"remote": {"endpoint": "tcp://10.0.0.1:7700"}}'),
        "remote.endpoint names a hub elsewhere, but `starspec up` starts its own",
    ),
    "address not ours": (
        ("up", "--target", "x", "--host", "192.0.2.1"),
        "cannot listen on 192.0.2.1:8000: cannot assign requested address",
    ),
    "a grid of words": (
        ("bench", "tree", "--target", "x", "--draft", "y", "--depths", "3,four"),
        "invalid value for --depths: numbers with commas between, as 2,15,27",
    ),
    "a chain of less than nothing": (
        ("bench", "tree", "--target", "x", "--draft", "y", "--chains", "-3"),
        "invalid value for --chains: numbers from 1 on, not -3",
    ),
    "a chain longer than any proposal": (
        ("bench", "tree", "--target", "x", "--draft", "y", "--chains", "65"),
        "--chains must be 1 to 64 each, got 65",
    ),
    "a head without its target": (
        ("bench", "length", "--head", "x"),
        "bench length with real models needs --target, and --draft or --head; in virtual time it takes no options",
    ),
    "a dtype of nothing": (
        ("bench", "length", "--dtype", "float32"),
        "bench length with real models needs --target, and --draft or --head; in virtual time it takes no options",
    ),
    "a quantization of synthetic accelerators": (
        ("bench", "star", "--draft-quantization", "int8"),
        "bench star with real models and their prompts needs both --target and --draft",
    ),
    "prompts of synthetic accelerators": (
        ("bench", "star", "--dataset", "x"),
        "bench star with real models and their prompts needs both --target and --draft",
    ),
    "prompts of a synthetic pair": (
        ("bench", "async", "--dataset", "x"),
        "bench async with real models, their prompts and --traces need both --target and --draft",
    ),
    "two files of one name": (
        ("bench", "length", "--target", "x", "--draft", "y", "--dataset", "a/qa.jsonl", "--dataset", "b/qa.jsonl"),
        "--dataset: two files are called 'qa', and the name tells them apart: rename one",
    ),
    "a batch of nobody": (
        ("bench", "batch", "--target", "x", "--draft", "y", "--batch-sizes", "4,0"),
        "invalid value for --batch-sizes: numbers from 1 on, not 0",
    ),
    "a grid without trees": (
        ("bench", "tree", "--target", "x", "--draft", "y", "--depths", "9", "--nodes", "4"),
        "a grid needs at least one chain and one tree: they are compared",
    ),
    "a target's trace to nowhere": (
        ("target", "--target", "synthetic:", "--trace", "/no/such/folder/t.json"),
        "--trace: '/no/such/folder/t.json' cannot be written: there is no folder '/no/such/folder'",
    ),
    "a target's trace where a folder is": (
        ("target", "--target", "synthetic:", "--trace", "."),
        "--trace: '.' is a folder",
    ),
    "a star's trace where a folder is": (("up", "--target", "synthetic:", "--trace", "."), "--trace: '.' is a folder"),
    "addresses where a folder is": (
        ("up", "--target", "x", "--ready-file", "."),
        "--ready-file: '.' is a folder: give the",
    ),
    "addresses to a device": (
        ("up", "--target", "x", "--ready-file", "/dev/null"),
        "--ready-file: '/dev/null' is not a regular file, and starspec would remove it",
    ),
    "a model's name that is no text": (("up", "m\udcff"), "model is not valid Unicode text: give it in UTF-8"),
    "a draft's name that is no text": (
        ("up", "x", "--draft", "m\udcff"),
        "model is not valid Unicode text: give it in UTF-8",
    ),
    "more targets than a machine could hold": (
        ("up", "--target", "x", "--targets", "100000"),
        "less than or equal to 256",
    ),
    "addresses to nowhere": (
        ("up", "--target", "x", "--ready-file", "/no/such/folder/r.json"),
        "--ready-file: '/no/such/folder/r.json' cannot be written: there is no folder '/no/such/folder'",
    ),
    "a key that is none": (("up", "--target", "x", "--api-key", ""), "the API key is empty: give one, or leave it out"),
    "a gateway's key that is none": (
        ("gateway", "--endpoint", "tcp://127.0.0.1:7800", "--target", "synthetic:", "--api-key", ""),
        "the API key is empty: give one, or leave it out",
    ),
    "an endpoint that ZeroMQ would refuse": (
        ("target", "--target", "synthetic:", "--speculative-config", '{"remote": {"endpoint": "tcp://http://h:7700"}}'),
        "is not of the form tcp://host:port",
    ),
    "a claim about nothing": (
        ("bench", "certify", "--model", "x", "--part", "pair"),
        "--part pair is about two models: give --target and --draft",
    ),
    "a claim about no head": (
        ("bench", "certify", "--model", "x", "--part", "head-bits"),
        "--part head-bits is about an EAGLE head: give --head",
    ),
    "options of models for layers that are modelled": (
        ("bench", "shard", "--draft-quantization", "int8"),
        "bench shard with real models needs --target and --draft; on modelled layers it takes no options but --quick",
    ),
    "a shard that is none": (
        ("bench", "certify", "--model", "x", "--shard", "half"),
        "--shard must be as 2/4, the second",
    ),
    "a shard beyond the last": (("bench", "certify", "--model", "x", "--shard", "5/4"), "there is no shard 5 of 4"),
    "half a pair": (
        ("bench", "certify", "--model", "x", "--target", "y"),
        "the parts with two models need both --target and --draft",
    ),
    "a pair without a draft": (
        ("doctor", "--target", "x"),
        "--draft is missing: the doctor examines a target, --target MODEL or --vllm URL, and its draft, --draft MODEL",
    ),
    "a pair without a target": (("doctor", "--draft", "x"), "--target is missing: the doctor examines a target"),
    "a pair of nothing": (("doctor",), "--target and --draft are missing: the doctor examines a target"),
    "a vLLM server in stages": (
        ("doctor", "--vllm", "http://127.0.0.1:1", "--draft", "x", "--stages", "2"),
        "no --tree-report is of a vLLM server, and it has no --stages",
    ),
    "a file that would not be written": (
        ("doctor", "--vllm", "http://127.0.0.1:1", "--json", "found.json"),
        "--vllm without --draft shows the server's counters and measures nothing: give --draft too, or leave all other",
    ),
    "counters that are not measured": (
        ("doctor", "--vllm", "http://127.0.0.1:1", "--num-prompts", "3"),
        "--vllm without --draft shows the server's counters and measures nothing",
    ),
    "a smaller vocabulary of a head that has the target's": (
        ("train", "--target", "x", "--prompts", "p", "--out", "head", "--method", "eagle", "--draft-vocab-size", "9"),
        "--draft-vocab-size is for eagle3: a head of eagle has its target's vocabulary",
    ),
    "layers that no draft reads": (
        ("up", "synthetic:", "--draft", "synthetic:", "--speculative-config", '{"feature_layers": [1]}', "--port", "0"),
        "feature_layers: for EAGLE heads, and 'synthetic:' does not say that it is one: leave it out, or give the",
    ),
    "keys in no folder at all": (
        ("target", "--target", "x", "--keys", ""),
        "--keys is empty: give a value, or leave it",
    ),
    "a model without a name": (
        ("bench", "pair", "--target", "", "--draft", "synthetic:"),
        "--target / --model is empty: give a value (see",
    ),
    "prompts in no file": (
        ("verify", "--target", "x", "--spec-method", "ngram", "--prompts", ""),
        "--prompts is empty: give a value, or leave it out",
    ),
    "a name of two lines": (("generate", "hi", "--target", "a\nb"), "there is no model at 'a\\nb'"),
    "half a character in the place of a number": (
        (*GENERATE, "--speculative-config", '{"num_speculative_tokens": "\\ud800"}'),
        "speculative config: '\\ud800' is not valid Unicode text",
    ),
    "half a character in the place of a switch": (
        ("target", "--target", "x", "--speculative-config", '{"remote": {"insecure": "\\ud800"}}'),
        "speculative config, remote: '\\ud800' is not valid Unicode text",
    ),
    "n-grams of a whole text": (
        (*GENERATE, "--speculative-config", '{"method": "ngram", "prompt_lookup_max": 17}'),
        "need 1 <= prompt_lookup_min <= prompt_lookup_max <= 16",
    ),
    "n-grams that nothing looks up": (
        (*GENERATE, "--draft", "synthetic:", "--speculative-config", '{"prompt_lookup_min": 1}'),
        "prompt_lookup_min: for method 'ngram', and a model drafts here; leave it out",
    ),
    "trace to nowhere": (("up", "--target", "x", "--trace", "/no/such/folder/t.json"), "there is no folder '/no/such"),
}


PROGRESS = ("bench ", "doctor: ", "train: ", "verify: ")


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(case: str, starspec) -> None:
    arguments, sentence = MISTAKES[case]
    outcome = starspec(*arguments)
    lines = [line for line in outcome.err.splitlines() if not (line.startswith(PROGRESS) or line.endswith(" ..."))]
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("starspec: ")
    assert sentence in lines[0]
    assert outcome.code == 2
    assert outcome.out == ""


@pytest.mark.parametrize(
    "command", [("up", "--target", "x"), ("gateway", "--endpoint", "tcp://127.0.0.1:7800", "--target", "synthetic:")]
)
def test_an_empty_key_in_the_environment_opens_no_server(command, starspec, monkeypatch) -> None:
    monkeypatch.setenv("STARSPEC_API_KEY", "")
    outcome = starspec(*command)
    assert outcome.code == 2
    assert "STARSPEC_API_KEY is empty: give a key, or unset it" in outcome.err


@pytest.mark.parametrize("key", ["schlüssel", "a\nb", " a", "a ", "\x7f", "\udcff"])
@pytest.mark.parametrize("is_variable", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("up", "--target", "x"),
        ("gateway", "--endpoint", "tcp://127.0.0.1:7800", "--target", "synthetic:"),
        ("top",),
        ("chat",),
    ],
)
def test_a_key_that_cannot_be_sent_is_refused(command, is_variable, key, starspec, monkeypatch) -> None:
    if is_variable:
        monkeypatch.setenv("STARSPEC_API_KEY", key)
    outcome = starspec(*command, *(() if is_variable else ("--api-key", key)))
    assert outcome.code == 2
    assert "the API key must be of printable ASCII characters" in outcome.err
    assert outcome.err.count("\n") == 1


def test_dashes_in_keys_count_as_underscores(starspec) -> None:
    outcome = starspec(*GENERATE, "--draft", "a", "--speculative-config", '{"num-speculative-tokens": 99}')
    assert "num_speculative_tokens must be 0 to 64" in outcome.err
