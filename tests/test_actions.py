"""What the buttons of the admin do: to whom they are shown, to which rows, and what they answer."""

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils.html import escape

from django_alkstore.models import Fire, Job, Lock, Schedule

from .factories import JobFactory, LockFactory, ScheduleFactory, ago
from .processes import held, locking

pytestmark = pytest.mark.django_db

EVERYTHING = [
    ("requeue", JobFactory, {"dead": True}),
    ("run_now", JobFactory, {"scheduled": True}),
    ("cancel", JobFactory, {}),
    ("set_priority", JobFactory, {}),
    ("pause", ScheduleFactory, {}),
    ("resume", ScheduleFactory, {"enabled": False}),
    ("fire_now", ScheduleFactory, {}),
    ("release", LockFactory, {}),
]
PERMISSIONS = {
    "requeue": "requeue_job",
    "run_now": "run_job",
    "cancel": "cancel_job",
    "set_priority": "prioritise_job",
    "pause": "pause_schedule",
    "resume": "pause_schedule",
    "fire_now": "fire_schedule",
    "release": "release_lock",
}
each_action = pytest.mark.parametrize(("action", "factory", "state"), EVERYTHING)
CONFIRMED = {"confirmed": "1"}
GONE = 999_999


def url(model, verb, *args, **query):
    return reverse(f"admin:django_alkstore_{model._meta.model_name}_{verb}", args=args, query=query)


def allow(client, django_user_model, *permissions):
    """Log in somebody who may look at every kind of row, and has the permissions."""
    user = django_user_model.objects.create(username="ada", is_staff=True)
    ours = Permission.objects.filter(content_type__app_label="django_alkstore")
    viewing = ours.filter(codename__startswith="view_")
    user.user_permissions.set([*viewing, *ours.filter(codename__in=permissions)])
    client.force_login(user)
    return client


@pytest.fixture
def operator(client, django_user_model):
    return allow(client, django_user_model, *PERMISSIONS.values())


@pytest.fixture
def act(operator):
    """Press a button with rows, or ids, selected: the messages that come back."""

    def press(action, *rows, model=None, query=None, **answers):
        response = post(operator, action, *rows, model=model, query=query, **answers)
        assert response.status_code == 302
        return [str(message) for message in operator.get(response.url).context["messages"]]

    return press


def post(client, action, *rows, model=None, query=None, **answers):
    selected = [getattr(row, "pk", row) for row in rows]
    address = url(model or type(rows[0]), "changelist", **(query or {}))
    return client.post(
        address, {"action": action, "index": 0, "_selected_action": selected, **answers}
    )


def stored(row):
    return type(row).objects.get(pk=row.pk)


def columns(model):
    return list(model.objects.order_by("pk").values())


# -- who may --------------------------------------------------------------------------------------


@each_action
def test_who_has_every_other_permission_sees_no_button_and_cannot_post(
    client, django_user_model, action, factory, state
):
    row = factory(**state)
    others = {*PERMISSIONS.values(), "change_job", "change_schedule", "change_lock"}
    viewer = allow(client, django_user_model, *others - {PERMISSIONS[action]})
    for address in (url(type(row), "changelist"), url(type(row), "change", row.pk)):
        assert f'value="{action}"' not in viewer.get(address).content.decode()
    before = columns(type(row))
    post(viewer, action, row, **CONFIRMED, priority=9, seen=f"{row.pk}:1")
    assert (columns(type(row)), Job.objects.count()) == (before, int(factory is JobFactory))


@each_action
def test_who_has_the_permission_sees_the_button_in_the_list_and_on_the_page(
    client, django_user_model, action, factory, state
):
    row = factory(**state)
    operator = allow(client, django_user_model, PERMISSIONS[action])
    for address in (url(type(row), "changelist"), url(type(row), "change", row.pk)):
        assert f'value="{action}"' in operator.get(address).content.decode()


@each_action
def test_an_address_alone_does_nothing(operator, action, factory, state):
    row = factory(**state)
    before = columns(type(row))
    query = {"action": action, "index": 0, "_selected_action": row.pk, **CONFIRMED}
    operator.get(url(type(row), "changelist"), query)
    assert (columns(type(row)), Fire.objects.count()) == (before, 0)


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        ({"dead": True}, {"requeue"}),
        ({"scheduled": True}, {"run_now", "cancel", "set_priority"}),
        ({}, {"cancel", "set_priority"}),
        ({"running": True}, set()),
        ({"done": True}, set()),
        ({"state": "weird"}, set()),
    ],
)
def test_the_page_of_a_job_offers_what_suits_its_state(operator, state, buttons):
    page = operator.get(url(Job, "change", JobFactory(**state).pk)).content.decode()
    actions = [name for name, factory, _ in EVERYTHING if factory is JobFactory]
    assert {name for name in actions if f'value="{name}"' in page} == buttons


# -- jobs -----------------------------------------------------------------------------------------


def test_dead_jobs_are_requeued_with_all_their_attempts(act):
    jobs = JobFactory.create_batch(2, dead=True)
    assert act("requeue", *jobs) == [f"2 jobs requeued: {jobs[0].pk}, {jobs[1].pk}."]
    assert [(job.state, job.attempts) for job in Job.objects.all()] == [("ready", 0)] * 2


def test_a_job_that_waits_for_its_time_is_run_now(act):
    job = JobFactory(scheduled=True)
    assert act("run_now", job) == [f"1 job made ready: {job.pk}."]
    assert stored(job).state == "ready"


def test_cancelling_asks_first(act, operator):
    job = JobFactory()
    response = post(operator, "cancel", job)
    page = response.content.decode()
    assert "Cancel 1 job?" in page
    assert f"job {job.pk} of reports (ready)" in page
    assert stored(job).state == "ready"
    assert act("cancel", job, **CONFIRMED) == [f"1 job cancelled: {job.pk}."]
    assert stored(job).state == "dead"


def test_the_page_between_names_the_first_of_many_jobs(operator, statements):
    jobs = JobFactory.create_batch(60)
    before = len(statements)
    page = post(operator, "cancel", *jobs).content.decode()
    assert "Cancel 60 jobs?" in page
    assert page.count("of reports (ready)") == 50
    assert "and 10 more" in page
    assert len(statements) - before <= 12


def test_changing_the_priority_asks_for_the_number(act, operator):
    job = JobFactory()
    assert 'name="priority"' in post(operator, "set_priority", job).content.decode()
    assert act("set_priority", job, **CONFIRMED, priority=7) == [
        f"1 job given priority 7: {job.pk}."
    ]
    assert stored(job).priority == 7


@pytest.mark.parametrize("priority", ["", "high", "1.5", str(2**31), "9" * 5_000])
def test_a_priority_that_is_none_is_asked_for_again(operator, priority):
    job = JobFactory()
    response = post(operator, "set_priority", job, **CONFIRMED, priority=priority)
    assert "errorlist" in response.content.decode()
    assert stored(job).priority == job.priority


@pytest.mark.parametrize(
    ("action", "shown"), [("requeue", "dead"), ("run_now", "scheduled"), ("cancel", "ready")]
)
def test_a_job_that_a_worker_took_in_between_is_left_alone_and_named(act, action, shown):
    job = JobFactory(running=True)  # by now; the list that was looked at is filtered by the state
    before = columns(Job)
    messages = act(action, job, query={"state": shown}, **CONFIRMED)
    assert messages == [f"1 job left alone, running by now: {job.pk}."]
    assert columns(Job) == before


def test_each_of_the_selected_jobs_gets_an_answer(act):
    dead, running = JobFactory(dead=True), JobFactory(running=True)
    assert act("requeue", dead, running, GONE, model=Job) == [
        f"1 job requeued: {dead.pk}.",
        f"1 job left alone, running by now: {running.pk}.",
        f"1 job left alone, gone by now: {GONE}.",
    ]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_has_locked_is_waited_for_by_nobody(act, only_on):
    only_on("postgresql", "mysql")
    job = JobFactory()
    with held(lambda: locking(job)):
        messages = act("cancel", job, **CONFIRMED)
    assert messages == [f"1 job left alone, locked by somebody else by now: {job.pk}."]


@pytest.mark.parametrize("id", ["abc", "-1", "9" * 30, "1.5", ""])
def test_an_id_that_is_none_is_passed_over(operator, id):
    JobFactory(dead=True)
    response = post(operator, "requeue", id, model=Job)
    assert response.status_code == 302
    assert Job.objects.get().state == "dead"


def test_all_of_a_filtered_list_can_be_selected(act):
    dead = JobFactory.create_batch(3, queue="mail", dead=True)
    other = JobFactory(dead=True)
    act("requeue", dead[0], query={"queue": "mail"}, select_across="1")
    assert Job.objects.filter(state="ready").count() == 3
    assert stored(other).state == "dead"


def test_a_long_answer_names_the_first_of_the_jobs(act):
    jobs = JobFactory.create_batch(60, dead=True)
    (message,) = act("requeue", *jobs)
    assert message.startswith("60 jobs requeued: ")
    assert message.endswith(" and 10 more.")


def test_a_button_on_the_page_of_a_job_comes_back_to_it(operator):
    job = JobFactory(dead=True)
    response = post(operator, "requeue", job, _page=job.pk)
    assert response.url == url(Job, "change", job.pk)


def test_what_was_done_is_in_the_history_of_the_job(act, operator):
    job = JobFactory(dead=True)
    act("requeue", job)
    assert "Requeued." in operator.get(url(Job, "history", job.pk)).content.decode()


# -- schedules ------------------------------------------------------------------------------------


def test_a_schedule_is_paused_and_resumed(act):
    row = ScheduleFactory(name="nightly")
    assert act("pause", row) == ["Schedule nightly was paused."]
    assert not stored(row).enabled
    assert act("pause", row) == ["Schedule nightly was left alone: it is paused already, or gone."]
    assert act("resume", row) == ["Schedule nightly was resumed."]
    assert stored(row).enabled


def test_a_schedule_is_fired_by_hand_in_the_name_of_who_did_it(act):
    row = ScheduleFactory(name="nightly")
    job_id = Job.objects.values_list("pk", flat=True)
    messages = act("fire_now", row)
    assert messages == [f"Schedule nightly was fired, as job {job_id.get()}."]
    assert Fire.objects.get().leader == "ada"
    assert stored(row).next_fire_at == row.next_fire_at


def test_a_schedule_that_was_spoilt_by_hand_says_what_is_wrong_and_the_next_is_done(act):
    spoilt = ScheduleFactory(name="a", enabled=False, spec="every now and then")
    good = ScheduleFactory(name="b", enabled=False)
    first, second = act("resume", spoilt, good)
    assert first.startswith("Schedule a was left alone: expected")
    assert "'every now and then'" in first
    assert second == "Schedule b was resumed."


@pytest.mark.parametrize("action", ["pause", "resume", "fire_now"])
def test_a_schedule_that_is_gone_is_said_to_be(act, action):
    assert act(action, GONE, model=Schedule) == [f"The schedule with the id {GONE} is gone."]


# -- locks ----------------------------------------------------------------------------------------


def test_releasing_a_lock_shows_the_holder_and_asks_first(act, operator):
    lock = LockFactory(name="rates", owner="host:1:aa", token=4)
    page = post(operator, "release", lock).content.decode()
    assert "rates, held by host:1:aa" in page
    assert stored(lock).owner == "host:1:aa"
    assert act("release", lock, **CONFIRMED, seen=f"{lock.pk}:4") == ["Lock rates was released."]
    assert stored(lock).owner == ""


def test_a_lock_that_changed_hands_after_it_was_shown_is_left_alone(act):
    lock = LockFactory(name="rates", owner="successor", token=5)
    messages = act("release", lock, **CONFIRMED, seen=f"{lock.pk}:4")
    assert messages == ["Lock rates was left alone: it is in other hands by now."]
    assert stored(lock).owner == "successor"


def test_a_lock_that_is_free_is_left_alone(act):
    lock = LockFactory(name="rates", owner="", expires_at=ago(1))
    before = columns(Lock)
    assert act("release", lock, **CONFIRMED, seen=f"{lock.pk}:1") == ["Lock rates is free already."]
    assert columns(Lock) == before


def test_names_are_no_markup_on_the_page_between(operator):
    lock = LockFactory(name="<script>alert(1)</script>")
    page = post(operator, "release", lock).content.decode()
    assert lock.name not in page
    assert escape(lock.name) in page


def test_the_page_between_carries_the_selection_over(operator):
    jobs = JobFactory.create_batch(2)
    page = post(operator, "cancel", *jobs, _page=jobs[0].pk).content.decode()
    for job in jobs:
        assert f'name="_selected_action" value="{job.pk}"' in page
    assert f'name="_page" value="{jobs[0].pk}"' in page


def test_who_says_no_goes_back_to_where_the_button_was(operator):
    job = JobFactory()
    from_page = post(operator, "cancel", job, _page=job.pk).content.decode()
    assert f'href="{url(Job, "change", job.pk)}" class="closelink"' in from_page
    from_list = post(operator, "cancel", job, query={"state": "ready"}).content.decode()
    assert f'href="{url(Job, "changelist", state="ready")}" class="closelink"' in from_list


def test_schedules_can_still_be_deleted_from_the_list(client, django_user_model):
    row = ScheduleFactory()
    deleter = allow(client, django_user_model, "delete_schedule")
    post(deleter, "delete_selected", row, post="yes")
    assert not Schedule.objects.exists()
