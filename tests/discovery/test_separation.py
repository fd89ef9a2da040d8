import torch

from inlay.discovery.triage import separation


def test_it_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randint(0, 9, (13,), generator=generator).float()
    new = torch.randint(3, 12, (7,), generator=generator).float()
    pairs = [
        1.0 if above > below else 0.5 if above == below else 0.0 for above in new.tolist() for below in known.tolist()
    ]
    assert abs(separation(known, new) - sum(pairs) / len(pairs)) < 1e-12
    assert 0.5 in pairs and abs(separation(new, known) + separation(known, new) - 1) < 1e-12
