import json
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inlay.errors import InlayError
from inlay.evaluation.matching import Matching, map_truth, match_clusters


def best_agreement(clusters: list[int], truth: list[int], cluster_count: int, truth_count: int) -> int:
    """Largest number of images that any one-to-one pairing can get right, by trying all."""
    size = max(cluster_count, truth_count)
    return max(
        sum(pairing[label] == cluster for cluster, label in zip(clusters, truth, strict=True))
        for pairing in permutations(range(size))
    )


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_no_pairing_agrees_on_more_images(cluster_count: int, truth_count: int, data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, cluster_count - 1), st.integers(0, truth_count - 1))
    images = data.draw(st.lists(pair, max_size=25))
    clusters, truth = [c for c, _ in images], [t for _, t in images]
    cluster_of = match_clusters(clusters, truth, cluster_count, truth_count)

    used = [c for c in cluster_of.tolist() if c >= 0]
    assert len(cluster_of) == truth_count
    assert len(used) == len(set(used)) == min(cluster_count, truth_count)
    assert set(used) <= set(range(cluster_count))
    agreement = sum(cluster_of[t] == c for c, t in images)
    assert agreement == best_agreement(clusters, truth, cluster_count, truth_count)


def test_order_of_images_and_ties_do_not_change_the_pairs() -> None:
    clusters, truth = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    first = match_clusters(clusters, truth, 2, 2)
    for order in permutations(range(4)):
        again = match_clusters(clusters[list(order)], truth[list(order)], 2, 2)
        assert again.tolist() == first.tolist()


def matched_on_all_labels(clusters: list[int], truth: list[int], size: int) -> list[tuple[int, ...]]:
    """The faulty way: pairs on a matrix over every label; all the best pairings a solver may return."""

    def agreement(columns: tuple[int, ...]) -> int:
        return sum(columns[cluster] == label for cluster, label in zip(clusters, truth, strict=True))

    pairings = list(permutations(range(size)))
    best = max(map(agreement, pairings))
    return [columns for columns in pairings if agreement(columns) == best]


def test_an_empty_cluster_does_not_shift_the_map() -> None:
    # Cluster 0 is empty, cluster 1 holds class 2, cluster 2 holds classes 0 (twice) and 1 (once): the only
    # best pairs are 2 -> 1 and 0 -> 2, which leave the empty cluster 0 to class 1.
    clusters, truth = [1, 1, 2, 2, 2], [2, 2, 0, 0, 1]
    assert match_clusters(clusters, truth, 3, 3).tolist() == [2, 0, 1]
    # With two base labels in the matrix, the empty cluster may as well be given a base label.
    faulty = matched_on_all_labels(clusters, [2 + label for label in truth], size=5)
    assert any(columns[0] < 2 for columns in faulty)


def test_fewer_clusters_than_classes_leave_a_class_without_one() -> None:
    # Shared images: cluster 0 has (0, 2, 1) and cluster 1 has (3, 1, 1); best is 2 + 3.
    clusters, truth = [0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 2, 0, 0, 0, 1, 2]
    assert match_clusters(clusters, truth, 2, 3).tolist() == [1, 0, -1]


def test_no_images_still_give_pairs() -> None:
    assert sorted(match_clusters([], [], 2, 2).tolist()) == [0, 1]


def test_ids_outside_their_range_are_refused() -> None:
    for clusters, truth, name in (([2], [0], "clusters"), ([-1], [0], "clusters"), ([0], [2], "truth")):
        with pytest.raises(ValueError, match=f"{name} must lie from 0 to 1"):
            match_clusters(clusters, truth, 2, 2)
    with pytest.raises(ValueError, match="1 clusters but 2 true classes were given"):
        match_clusters([0], [0, 1], 2, 2)


def test_solve_names_the_clusters() -> None:
    names = ["ant", "bee", "cow"]
    truth = ["bee", "bee", "ant", "ant", "cow"]
    assert Matching.solve(1, [0, 0, 3, 3, 1], truth, 4, names, "train") == Matching(
        1, ("bee", "cow", None, "ant"), "train"
    )
    with pytest.raises(ValueError, match=r"\['elk'\] are not among the classes of stage 1"):
        Matching.solve(1, [0], ["elk"], 1, names, "test")


def relabelled_in_place(labels: list[int], new_id: list[int]) -> list[int]:
    """The faulty way: each round also rewrites labels that an earlier round has just written."""
    for old, new in enumerate(new_id):
        labels = [new if label == old else label for label in labels]
    return labels


def test_a_cycle_of_ids_is_mapped_in_one_step() -> None:
    # ant -> cluster 1, bee -> cluster 2, cow -> cluster 0: writing 0 -> 1, 1 -> 2, 2 -> 0 one after another
    # into the same labels would send all three classes to cluster 0.
    matching = Matching(1, ("cow", "ant", "bee"), "train")
    assert map_truth(["ant", "bee", "cow"], [], [matching]).tolist() == [1, 2, 0]
    assert relabelled_in_place([0, 1, 2], [1, 2, 0]) == [0, 0, 0]


def test_outputs_of_later_stages_follow_those_of_earlier_ones() -> None:
    matchings = [Matching(1, ("hen", None, "fox"), "train"), Matching(2, ("bee", "ant"), "train")]
    truth = ["dog", "fox", "hen", "ant", "bee", "cat", "elk", "cow", "elk"]
    # cat 0, dog 1 | hen 2, nobody 3, fox 4 | bee 5, ant 6; cow and elk have no output.
    assert map_truth(truth, ["cat", "dog"], matchings).tolist() == [1, 4, 2, 6, 5, 0, -2, -1, -2]


def test_one_class_cannot_have_two_outputs() -> None:
    with pytest.raises(ValueError, match="two outputs stand for the same true class"):
        map_truth(["cat"], ["cat"], [Matching(1, ("cat",), "train")])


def test_matching_json_round_trip() -> None:
    matching = Matching(2, ("bee", None, "ant"), "test")
    assert Matching.from_json(json.loads(json.dumps(matching.to_json()))) == matching


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "it does not have exactly the keys matched_on, stage, truth_of"),
        ({"stage": 1, "truth_of": []}, "it does not have exactly the keys"),
        ({"stage": 1, "truth_of": [], "matched_on": "train", "x": 1}, "it does not have exactly the keys"),
        ({"stage": "1", "truth_of": [], "matched_on": "train"}, "the stage is '1'"),
        ({"stage": True, "truth_of": [], "matched_on": "train"}, "the stage is True"),
        ({"stage": 1, "truth_of": [], "matched_on": "val"}, "matched_on is 'val'"),
        ({"stage": 1, "truth_of": "ant", "matched_on": "train"}, "truth_of is not a list of names"),
        ({"stage": 1, "truth_of": [3], "matched_on": "train"}, "truth_of is not a list of names"),
        ({"stage": 1, "truth_of": ["a", "a"], "matched_on": "train"}, "two clusters stand for one class"),
    ],
)
def test_damaged_matching_is_refused(data: object, reason: str) -> None:
    with pytest.raises(InlayError) as caught:
        Matching.from_json(data)
    assert str(caught.value).startswith(f"The matching was damaged or edited by hand ({reason}")
