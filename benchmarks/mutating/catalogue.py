"""Deliberate faults: one text of the sources replaced by another that a person could have written.

Every text stands in its file exactly once (a test), so that a change of the sources cannot turn a
fault into nothing without anybody noticing.
"""

from __future__ import annotations

from dataclasses import dataclass

FAMILY = "models/src/holdfast_models/energy_flow"
FAMILY_TESTS = "models/tests/energy_flow"
TRAINING = "src/holdfast/training"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One fault.

    Args:
        theme: what it is about; rows of the table are grouped by it.
        name: what the mutated code does wrong.
        file: under the root of the repository.
        old: what stands there, exactly once.
        new: what stands there instead.
        tests: files of default tests, one of which has to notice.
    """

    theme: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FIRST_RUN = (
    Mutation(
        theme="first command and presets",
        name="flows have up to 3 children by default, in the presets too",
        file=f"{FAMILY}/model/settings.py",
        old="spawn_most: int = bounded(0, 0)",
        new="spawn_most: int = bounded(3, 0)",
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
    Mutation(
        theme="first command and presets",
        name="the default lattice is 20 x 20 x 10 with a carrier of width 256",
        file=f"{FAMILY}/run_settings.py",
        old="lattice=LatticeSettings(width=12, height=12, depth=6), "
        "carrier=CarrierSettings(hidden=48)",
        new="lattice=LatticeSettings(), carrier=CarrierSettings()",
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
    Mutation(
        theme="first command and presets",
        name="the first command goes four times over the data instead of 300 steps",
        file=f"{FAMILY}/run_settings.py",
        old="epochs=None,\n        steps=300,",
        new="epochs=4,\n        steps=None,",
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
    Mutation(
        theme="first command and presets",
        name="presets let slow flows die, which the fast path cannot",
        file=f"{FAMILY}/model/settings.py",
        old='"flows": {"capacity": capacity, "spawn_threshold": spawn_threshold},',
        new='"flows": {"capacity": capacity, "spawn_threshold": spawn_threshold,\n'
        '                  "filter_below": 1e-3},',
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
    Mutation(
        theme="first command and presets",
        name="the preset fields couples its flows, which the fast path cannot",
        file=f"{FAMILY}/recipe.py",
        old='"mapper": {"form": "linear"},',
        new='"mapper": {"form": "linear"}, "flows": {"coupling": True},',
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
)

LEAKS = (
    Mutation(
        theme="memory that grows",
        name="the core keeps its last output",
        file=f"{FAMILY}/model/lattice.py",
        old="return entry.run(self.parts, lattice_pass, surface_BHW, self.graphs, self._fits)",
        new="self.last = entry.run(self.parts, lattice_pass, surface_BHW, self.graphs, {})\n"
        "        return self.last",
        tests=(f"{FAMILY_TESTS}/test_defects.py",),
    ),
    Mutation(
        theme="memory that grows",
        name="the objective keeps every output in a list",
        file=f"{FAMILY}/recipe.py",
        old="        total = energy\n",
        new='        self.outputs = [*getattr(self, "outputs", ()), out]\n        total = energy\n',
        tests=(f"{FAMILY_TESTS}/test_defects.py",),
    ),
    Mutation(
        theme="memory that grows",
        name="the losses that are told hold the graph of their batch",
        file=f"{FAMILY}/recipe.py",
        old='{"total_loss": total.detach(), "energy_loss": energy.detach()}',
        new='{"total_loss": total, "energy_loss": energy}',
        tests=(f"{FAMILY_TESTS}/test_defects.py", f"{FAMILY_TESTS}/test_step_metrics.py"),
    ),
)

FORECAST = (
    Mutation(
        theme="forecast",
        name="the forecast is asked for after the model is built",
        file=f"{TRAINING}/recipe_run.py",
        old="        if recipe.forecast is not None:\n"
        "            say = print if place.main and not quiet else _nobody\n"
        "            announce(recipe.name, recipe.forecast(settings, place), place, say)\n"
        "        task = _built(recipe, settings, place)\n"
        "        trainer = ",
        new="        task = _built(recipe, settings, place)\n"
        "        if recipe.forecast is not None:\n"
        "            say = print if place.main and not quiet else _nobody\n"
        "            announce(recipe.name, recipe.forecast(settings, place), place, say)\n"
        "        trainer = ",
        tests=("tests/training/test_forecast.py",),
    ),
    Mutation(
        theme="forecast",
        name="quiet runs are not refused where they cannot fit",
        file=f"{TRAINING}/recipe_run.py",
        old="        if recipe.forecast is not None:",
        new="        if recipe.forecast is not None and not quiet:",
        tests=("tests/training/test_forecast.py",),
    ),
    Mutation(
        theme="forecast",
        name="on a CPU a pass never goes in chunks, however little memory is free",
        file=f"{FAMILY}/modes/entry.py",
        old="fits[key] = need <= SHARE * free_memory(surface_BHW.device)",
        new='on_cpu = surface_BHW.device.type == "cpu"\n'
        "        fits[key] = on_cpu or need <= SHARE * free_memory(surface_BHW.device)",
        tests=(f"{FAMILY_TESTS}/test_forecast.py",),
    ),
    Mutation(
        theme="forecast",
        name="free memory of the host is all that it has",
        file=f"{TRAINING}/batch_size/memory.py",
        old="return host_memory().free",
        new="return host_memory().total",
        tests=(f"{FAMILY_TESTS}/test_forecast.py", "tests/training/test_batch_size.py"),
    ),
    Mutation(
        theme="forecast",
        name="activations are estimated at a tenth",
        file=f"{FAMILY}/modes/memory.py",
        old="return flows * steps * (state + heads + inputs) * itemsize",
        new="return flows * steps * (state + heads + inputs) * itemsize // 10",
        tests=(f"{FAMILY_TESTS}/test_forecast.py", f"{FAMILY_TESTS}/modes/test_modes.py"),
    ),
    Mutation(
        theme="forecast",
        name="activations are estimated at ten times what they are",
        file=f"{FAMILY}/modes/memory.py",
        old="return flows * steps * (state + heads + inputs) * itemsize",
        new="return flows * steps * (state + heads + inputs) * itemsize * 10",
        tests=(f"{FAMILY_TESTS}/test_forecast.py", f"{FAMILY_TESTS}/modes/test_modes.py"),
    ),
)

DATA = (
    Mutation(
        theme="data",
        name="the objective copies the training part to fp32",
        file=f"{FAMILY}/recipe.py",
        old="mean_E = mean_target(sets.train)",
        new="mean_E = sets.train.tensors()[1].mean(0)",
        tests=(f"{FAMILY_TESTS}/data/test_mapped_memory.py",),
    ),
    Mutation(
        theme="data",
        name="the error on a torch file passes torch's advice on (weights_only=False)",
        file=f"{FAMILY}/data/tensor_files.py",
        old='raise HoldfastError(f"{path}: {what}; {again}") from None',
        new='raise HoldfastError(f"{path}: {what} ({error}); {again}") from None',
        tests=(f"{FAMILY_TESTS}/data/test_broken_files.py",),
    ),
    Mutation(
        theme="data",
        name="of several files given with commas only the first is read",
        file=f"{FAMILY}/data/pairs.py",
        old='tuple(filter(None, map(str.strip, self.path.split(","))))',
        new='tuple(filter(None, map(str.strip, self.path.split(",")[:1])))',
        tests=(f"{FAMILY_TESTS}/data/test_pairs.py",),
    ),
    Mutation(
        theme="data",
        name="of several files given as a list only the first is read",
        file=f"{FAMILY}/data/pairs.py",
        old="return self.path or ()",
        new="return (self.path or ())[:1]",
        tests=(f"{FAMILY_TESTS}/data/test_pairs.py",),
    ),
    Mutation(
        theme="data",
        name="rows of a second file are taken from the first",
        file=f"{FAMILY}/data/tables.py",
        old="table_NE, here_B = tables[number], part_B == number",
        new="table_NE, here_B = tables[0], part_B == number",
        tests=(f"{FAMILY_TESTS}/data/test_pairs.py",),
    ),
    Mutation(
        theme="data",
        name="chunks of a dataset come in the same order in every epoch",
        file=f"{TRAINING}/data/sampling.py",
        old='order = torch.randperm(count, generator=drawn, device="cpu").tolist()',
        new="order = list(range(count))",
        tests=("tests/training/test_chunks.py",),
    ),
    Mutation(
        theme="data",
        name="chunks of a stream come in the order of its shards",
        file=f"{TRAINING}/data/streaming.py",
        old="        if self._shuffles:\n"
        "            random.Random(mixed(self._seed, _SHARDS, epoch, again)).shuffle(pieces)\n",
        new="",
        tests=("tests/training/test_chunks.py", "tests/training/test_streaming.py"),
    ),
    Mutation(
        theme="data",
        name="every epoch has the order of the first",
        file=f"{TRAINING}/data/sampling.py",
        old="drawn = generator(self._seed, epoch)",
        new="drawn = generator(self._seed, 0)",
        tests=("tests/training/test_sampling.py",),
    ),
    Mutation(
        theme="data",
        name="samples of two chunks that fill no batch are lost",
        file=f"{TRAINING}/data/chunks.py",
        old='            parts = [(rest, torch.arange(len(rest), device="cpu"))]\n',
        new="            parts, missing = [], size\n",
        tests=("tests/training/test_whole_batches.py",),
    ),
    Mutation(
        theme="data",
        name="chunks are cut through compressed blocks",
        file=f"{TRAINING}/data/chunks.py",
        old="            last = edges[at]\n",
        new="            pass\n",
        tests=("tests/training/test_whole_batches.py",),
    ),
    Mutation(
        theme="data",
        name="a part of a stream is predicted from the beginning of the stream",
        file=f"{TRAINING}/data/streaming.py",
        old="return self._first + first, self._first + last",
        new="return first, last",
        tests=("tests/training/test_predicting.py",),
    ),
    Mutation(
        theme="data",
        name="a summary of the validation has the rows of one rank",
        file=f"{TRAINING}/loop/sample_rows.py",
        old="return distributed.gather_rows(own, place)",
        new="return own",
        tests=("tests/training/test_sample_rows.py",),
    ),
)

NUMBERS = (
    Mutation(
        theme="channels and numbers",
        name="the channel convergence is silent",
        file=f"{FAMILY}/channels.py",
        old="        _convergence(_convergence_reported, flows, settings)\n",
        new="",
        tests=(f"{FAMILY_TESTS}/test_step_metrics.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="the channel memory does not say what the data takes",
        file=f"{FAMILY}/channels.py",
        old='    _memory(\n        "data: ',
        new='    _init(\n        "data: ',
        tests=(f"{FAMILY_TESTS}/test_step_metrics.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="the channel memory is silent while a run trains",
        file=f"{TRAINING}/loop/reporting.py",
        old="        if _memory.on:\n"
        '            _memory(lambda: f"step {step}: {memory_peak(self._place.device)}")\n',
        new="",
        tests=("tests/training/test_channel_messages.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="text_bridge_time_ms is in seconds",
        file=f"{FAMILY}/step_metrics.py",
        old='"text": ("text_bridge_time_ms", 1e3),',
        new='"text": ("text_bridge_time_ms", 1.0),',
        tests=(f"{FAMILY_TESTS}/test_step_metrics.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="flow_convergence_steps is the mean of the flows, not the steps of the pass",
        file=f"{FAMILY}/step_metrics.py",
        old='"flow_convergence_steps": "steps",',
        new='"flow_convergence_steps": "mean_steps",',
        tests=(f"{FAMILY_TESTS}/test_step_metrics.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="tokens are counted with their padding",
        file=f"{FAMILY}/recipe.py",
        old='{"tokens": (batch[3] != pad).sum() + (batch[4] != pad).sum()}',
        new='{"tokens": (batch[3] >= 0).sum() + (batch[4] >= 0).sum()}',
        tests=(f"{FAMILY_TESTS}/test_step_metrics.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="memory_used_gb of a CPU is in GiB",
        file=f"{TRAINING}/loop/measures.py",
        old='return {"memory_used_gb": resident() / 1e9}',
        new='return {"memory_used_gb": resident() / 2**30}',
        tests=("tests/training/test_measures.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="memory_used_gb of a GPU is in GiB",
        file=f"{TRAINING}/loop/measures.py",
        old='numbers = {"memory_used_gb": used / 1e9}',
        new='numbers = {"memory_used_gb": used / 2**30}',
        tests=("tests/training/test_measures.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="throughput_samples_per_sec counts steps",
        file=f"{TRAINING}/loop/measures.py",
        old='"throughput_samples_per_sec": everywhere / seconds,',
        new='"throughput_samples_per_sec": steps / seconds,',
        tests=("tests/training/test_measures.py",),
    ),
    Mutation(
        theme="channels and numbers",
        name="the samples per second at the end of a run count steps",
        file=f"{TRAINING}/trainer.py",
        old="rate=step_reporter.run.samples * place.world / trained,",
        new="rate=step_reporter.run.steps * place.world / trained,",
        tests=("tests/training/test_measures.py",),
    ),
)

LOOP = (
    Mutation(
        theme="loss scale, gradients, health",
        name="an explosion only halves the loss scale",
        file="src/holdfast/actions/scaler_policy.py",
        old="self._target = scale * self._settings.explosion",
        new="self._target = scale * self._settings.backoff",
        tests=("tests/actions/test_scaler_policy.py", "tests/training/test_loss_scale.py"),
    ),
    Mutation(
        theme="loss scale, gradients, health",
        name="a non-finite loss counts as an ordinary overflow",
        file="src/holdfast/guard/grad_scaler.py",
        old='    if record.loss_bad:\n        return "nonfinite"\n',
        new="",
        tests=("tests/training/test_loss_scale.py",),
    ),
    Mutation(
        theme="loss scale, gradients, health",
        name="on a device an infinite loss does not lower the scale, only NaN does",
        file="src/holdfast/actions/scaler_policy.py",
        old="signs.append(loss - loss != 0)",
        new="signs.append(loss != loss)",
        tests=("tests/actions/test_scaler_policy.py", "tests/training/test_loss_scale.py"),
    ),
    Mutation(
        theme="loss scale, gradients, health",
        name="grad_norm_max is the norm after clipping",
        file=f"{TRAINING}/loop/norms.py",
        old='self._norms.add(row["grad_norm"] for row in rows)',
        new='self._norms.add(row["grad_norm"] * row["clip"] for row in rows)',
        tests=("tests/training/test_health.py",),
    ),
    Mutation(
        theme="loss scale, gradients, health",
        name="nobody looks at the health of a run by default",
        file=f"{TRAINING}/loop/health.py",
        old="every: int = bounded(50, 0)",
        new="every: int = bounded(0, 0)",
        tests=("tests/training/test_health.py",),
    ),
)

RESUME = (
    Mutation(
        theme="resume and predictions",
        name="a resumed run keeps its old learning rate",
        file=f"{TRAINING}/tuning.py",
        old="self._schedule.retune(bases, anew=anew)",
        new="self._schedule.retune(None, anew=anew)",
        tests=("tests/training/test_tuning.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="checkpoints do not hold the settings that a change is compared with",
        file=f"{TRAINING}/trainer.py",
        old='state={**own, **task.state, "tuning": tuning},',
        new="state={**own, **task.state},",
        tests=("tests/training/test_tuning.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="--resume best takes the newest checkpoint",
        file=f"{TRAINING}/resuming.py",
        old="store.best(BEST, mode, proven=True)",
        new="store.latest()",
        tests=("tests/cli/test_train.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="the word best alone means the newest checkpoint of the newest run",
        file="src/holdfast/cli/train.py",
        old='best = word == _BEST or word.endswith(f"@{_BEST}")',
        new='best = word.endswith(f"@{_BEST}")',
        tests=("tests/cli/test_train.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="settings are not compared with those of the run that is resumed",
        file="src/holdfast/cli/train.py",
        old="found, why_not = compare_with_run(recipe, settings, start.former)",
        new='found, why_not = [], ""',
        tests=("tests/cli/test_train.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="settings are not compared where a run goes on from its best checkpoint",
        file="src/holdfast/cli/train.py",
        old="        resume=entry.path,\n        former=former,\n",
        new="        resume=entry.path,\n",
        tests=("tests/cli/test_train.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="the lattice does not know its optimizer step after a resume",
        file=f"{FAMILY}/recipe.py",
        old='state={"clock": clock},',
        new="state={},",
        tests=(f"{FAMILY_TESTS}/test_training.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="predictions that are gone on with are written twice",
        file=f"{TRAINING}/predicting.py",
        old="_batches(task, data, settings, place, first + done, last)",
        new="_batches(task, data, settings, place, first, last)",
        tests=("tests/training/test_predicting.py",),
    ),
    Mutation(
        theme="resume and predictions",
        name="the report counts steps twice that were done again after a resume",
        file="src/holdfast/report/summary.py",
        old="done[rank] = (first if resumed else done.get(rank, 0)) + steps",
        new="done[rank] = done.get(rank, 0) + steps",
        tests=("tests/report/test_summary.py",),
    ),
)

MODEL = (
    Mutation(
        theme="model and baselines",
        name="the core hands the surface on as it came",
        file=f"{FAMILY}/model/energy_flow.py",
        old="out_BS = flows.surface_BS",
        new="out_BS = surface_BHW.flatten(1)",
        tests=(f"{FAMILY_TESTS}/test_core_advantage.py",),
    ),
    Mutation(
        theme="model and baselines",
        name="the carrier displaces no flow, only the drift does",
        file=f"{FAMILY}/model/stepping.py",
        old="delta_N3 = with_drift(delta_N3, parts.settings.z_drift)",
        new="delta_N3 = with_drift(0.0 * delta_N3, parts.settings.z_drift)",
        tests=(f"{FAMILY_TESTS}/test_core_advantage.py",),
    ),
    Mutation(
        theme="model and baselines",
        name='the baseline "mappers alone" has the core',
        file=f"{FAMILY}/evaluation/baselines.py",
        old="core=False,\n"
        "        pictures=False,\n"
        "        train=dataclasses.replace(loaded.settings.train, device=str(device)),\n"
        "    )\n"
        "    found = [\n"
        "        ComparedNetwork(\n"
        '            "mappers alone",\n'
        "            RECIPE,\n"
        "            settings,\n"
        "            lambda sets: "
        "make_model(settings.model, settings.bridge, sets.train, core=False),\n",
        new="pictures=False,\n"
        "        train=dataclasses.replace(loaded.settings.train, device=str(device)),\n"
        "    )\n"
        "    found = [\n"
        "        ComparedNetwork(\n"
        '            "mappers alone",\n'
        "            RECIPE,\n"
        "            settings,\n"
        "            lambda sets: make_model(settings.model, settings.bridge, sets.train),\n",
        tests=(f"{FAMILY_TESTS}/evaluation/test_baselines.py",),
    ),
    Mutation(
        theme="model and baselines",
        name="core=false is ignored: the baseline has a core wherever it is asked for",
        file=f"{FAMILY}/model/energy_flow.py",
        old="self.core = Core(settings) if core else None",
        new="self.core = Core(settings)",
        tests=(
            f"{FAMILY_TESTS}/test_core_advantage.py",
            f"{FAMILY_TESTS}/evaluation/test_baselines.py",
        ),
    ),
    Mutation(
        theme="model and baselines",
        name="the output mapper is no submodule: neither trained nor saved",
        file=f"{FAMILY}/model/energy_flow.py",
        old="self.output = OutputMapper(settings.width, settings.lattice, settings.mapper)",
        new="output = OutputMapper(settings.width, settings.lattice, settings.mapper)\n"
        '        object.__setattr__(self, "output", output)',
        tests=(f"{FAMILY_TESTS}/test_training.py",),
    ),
    Mutation(
        theme="model and baselines",
        name="the target surface is moved towards the output",
        file=f"{FAMILY}/losses.py",
        old="out_BS.float(), target_BS.float().detach()",
        new="out_BS.float(), target_BS.float()",
        tests=(f"{FAMILY_TESTS}/evaluation/test_metrics.py",),
    ),
    Mutation(
        theme="model and baselines",
        name="evaluation has the noise of training",
        file=f"{FAMILY}/model/lattice.py",
        old="training=self.training,",
        new="training=True,",
        tests=(f"{FAMILY_TESTS}/test_training.py",),
    ),
)

ALL = (*FIRST_RUN, *LEAKS, *FORECAST, *DATA, *NUMBERS, *LOOP, *RESUME, *MODEL)
