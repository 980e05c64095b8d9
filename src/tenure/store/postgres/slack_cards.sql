-- Cards in Slack; see tenure.store.slack_cards.

-- name: card_hooks
select {h.hook} from tenure.hook as h
join tenure.tenant as t on t.id = h.tenant and t.closed_at is null
where h.kind = 'slack' and not h.disabled and h.settings::jsonb ->> 'channel' is not null
order by h.created_at, h.id

-- name: cards_wanted
select {a.approval}, w.kind, w.label, w.name, r.workflow
from tenure.approval as a
join tenure.wait as w on w.run_id = a.run_id and w.no = a.no and w.kind = 'approval'
join tenure.run as r on r.id = a.run_id
where a.tenant = $1 and a.status = 'requested'
    and not exists (select from tenure.slack_card as c where c.run_id = a.run_id and c.no = a.no)
order by a.requested_at, a.run_id, a.no limit $2::bigint

-- name: new_card
insert into tenure.slack_card ({slack_card})
values ($1::bigint, $2::integer, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bigint, $9::integer, $10::boolean, $11::text)
on conflict (run_id, no) do nothing
returning {slack_card}

-- name: take_cards
-- At most $3 cards that were never posted or are out of date. The caller has them until $2. Cards that another process is
-- taking are left out.
update tenure.slack_card t set due_at = $2::bigint, tries = t.tries + 1
from (
    select c.run_id, c.no from tenure.slack_card as c
    join tenure.approval as a on a.run_id = c.run_id and a.no = c.no
    where c.due_at <= $1::bigint and (
        c.ts is null or c.shown <> a.revision || '/' || a.status || '/' || a.votes
        or (a.reminded_at is not null and not c.reminded))
    order by c.due_at limit $3::bigint for update of c skip locked) d
where t.run_id = d.run_id and t.no = d.no and t.due_at <= $1::bigint
returning {t.slack_card}

-- name: put_card
-- Only by the process that took the card for try $12.
update tenure.slack_card set ts = $6::text, shown = $7::text, due_at = $8::bigint, tries = $9::integer, reminded = $10::boolean, error = $11::text
where run_id = $1::bigint and no = $2::integer and tries = $12::integer
    and tenant = $3::text and hook_id = $4::text and channel = $5::text
returning {slack_card}

-- name: delete_orphan_cards
delete from tenure.slack_card where not exists (select from tenure.approval as a where a.run_id = slack_card.run_id and a.no = slack_card.no)
returning {slack_card}
