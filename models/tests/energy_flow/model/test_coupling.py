from __future__ import annotations

import torch

from holdfast_models.energy_flow.model.coupling import Field
from holdfast_models.energy_flow.model.flows import launch


def scattered(settings, batch: int = 2):
    random = torch.Generator().manual_seed(0)
    flows = launch(torch.randn(batch, 5, 6, generator=random), settings.lattice, settings)
    return flows._replace(p_N3=torch.rand(30 * batch, 3, generator=random) * 2 - 1)


def test_the_field_is_the_smoothed_sum_of_living_energies(small_settings):
    settings = small_settings(flows={"coupling": True})
    flows, field = scattered(settings), Field(settings)
    with torch.no_grad():
        field.filter.normal_(generator=torch.Generator().manual_seed(1))
    active_N = torch.arange(60) % 3 > 0

    def corners(p_3: torch.Tensor) -> list[tuple[int, int, float]]:
        x, y = float(p_3[0] + 1) / 2 * 5, float(p_3[1] + 1) / 2 * 4
        left, low = int(x), int(y)
        return [
            (low + j, left + i, (x - left if i else 1 - x + left) * (y - low if j else 1 - y + low))
            for i in (0, 1)
            for j in (0, 1)
        ]

    raw_BHW = torch.zeros(2, 5, 6)
    for n in active_N.nonzero()[:, 0].tolist():
        for y, x, share in corners(flows.p_N3[n]):
            raw_BHW[n // 30, y, x] += share * flows.e_N1[n, 0]
    smooth_BHW = torch.zeros(2, 5, 6)
    for y in range(5):
        for x in range(6):
            for j in range(max(0, y - 1), min(5, y + 2)):
                for i in range(max(0, x - 1), min(6, x + 2)):
                    weight = field.filter.detach()[0, 0, j - y + 1, i - x + 1]
                    smooth_BHW[:, y, x] += weight * raw_BHW[:, j, i]
    wanted = [
        sum(share * float(smooth_BHW[n // 30, y, x]) for y, x, share in corners(flows.p_N3[n]))
        for n in range(60)
    ]
    got_N1 = field(flows, active_N, 2)
    torch.testing.assert_close(got_N1[:, 0], torch.tensor(wanted), atol=1e-5, rtol=1e-5)


def test_the_sorted_sum_is_the_same_field(small_settings):
    fields = []
    for deterministic in (False, True):
        settings = small_settings(flows={"coupling": True, "deterministic": deterministic})
        flows = scattered(settings)
        fields.append(Field(settings)(flows, flows.alive_N, 2))
    torch.testing.assert_close(fields[0], fields[1])


def test_coupling_lets_one_cell_feel_another(busy_core):
    given_BHW = torch.zeros(1, 5, 6)
    moved_BHW = given_BHW.clone()
    moved_BHW[0, 2, 2] = 1.0
    for coupling, felt in ((False, False), (True, True)):
        core = busy_core(flows={"coupling": coupling}).eval()
        ends = [core(one, step=0, seed=0).e_N1 for one in (given_BHW, moved_BHW)]
        others_N = torch.arange(30) != 2 * 6 + 2
        assert bool((ends[0] - ends[1])[others_N].abs().max() > 1e-4) is felt


def test_a_flow_is_drawn_by_the_gradient_of_the_field(small_settings):
    settings = small_settings(flows={"coupling": True})
    flows = scattered(settings)
    p_N3 = flows.p_N3.clone().requires_grad_()
    field = Field(settings)
    field(flows._replace(p_N3=p_N3), flows.alive_N, 2).square().sum().backward()
    assert p_N3.grad is not None and p_N3.grad[:, :2].any() and not p_N3.grad[:, 2].any()
    assert field.filter.grad is not None and field.filter.grad.any()
