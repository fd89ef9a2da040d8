from inlay.demo.recipe import demo_settings, demo_stages, forgetful_settings, plain_settings


def test_stages_are_four_and_twice_three_digits_drawn_by_the_seed() -> None:
    stages = demo_stages(0)
    assert [len(stages.class_names(k)) for k in range(stages.count + 1)] == [4, 3, 3]
    assert [stages.class_names(k) for k in range(3)] == [demo_stages(0).class_names(k) for k in range(3)]
    assert [stages.class_names(k) for k in range(3)] != [demo_stages(1).class_names(k) for k in range(3)]


def test_plain_base_sees_images_as_they_are_and_labels_alone() -> None:
    base = plain_settings().base
    assert base.view == "none"
    assert base.contrastive == 0


def test_forgetful_stage_keeps_nothing_of_the_past() -> None:
    settings = forgetful_settings()
    assert settings.branch.gate == "imm"
    assert settings.distillation.weight == 0
    assert settings.replay.weight == 0
    assert not settings.classifier.refit
    assert settings.assignment == demo_settings().assignment


def test_no_view_mirrors_digits() -> None:
    settings = demo_settings()
    assert {settings.base.view, settings.first_view, settings.second_view} == {"glyph"}
