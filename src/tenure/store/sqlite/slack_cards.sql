-- Cards in Slack; see tenure.store.slack_cards.

-- name: card_hooks
select h.* from hook as h
join tenant as t on t.id = h.tenant and t.closed_at is null
where h.kind = 'slack' and h.disabled = 0 and json_extract(h.settings, '$.channel') is not null
order by h.created_at, h.id

-- name: cards_wanted
select a.*, w.kind, w.label, w.name, r.workflow
from approval as a
cross join wait as w on w.run_id = a.run_id and w.no = a.no and w.kind = 'approval'
cross join run as r on r.id = a.run_id
where a.tenant = ?1 and a.status = 'requested'
    and not exists (select 1 from slack_card as c where c.run_id = a.run_id and c.no = a.no)
order by a.requested_at, a.run_id, a.no limit ?2

-- name: new_card
insert into slack_card values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
on conflict (run_id, no) do nothing
returning *

-- name: take_cards
-- At most ?3 cards that were never posted or are out of date. The caller has them until ?2.
update slack_card set due_at = ?2, tries = tries + 1
where (run_id, no) in (
    select c.run_id, c.no from slack_card as c
    join approval as a on a.run_id = c.run_id and a.no = c.no
    where c.due_at <= ?1 and (
        c.ts is null or c.shown <> a.revision || '/' || a.status || '/' || a.votes
        or (a.reminded_at is not null and c.reminded = 0))
    order by c.due_at limit ?3)
returning run_id, no, tenant, hook_id, channel, ts, shown, due_at, tries, reminded, error

-- name: put_card
-- Only by the process that took the card for try ?12.
update slack_card set ts = ?6, shown = ?7, due_at = ?8, tries = ?9, reminded = ?10, error = ?11
where run_id = ?1 and no = ?2 and tries = ?12 and ?3 = tenant and ?4 = hook_id and ?5 = channel
returning run_id, no, tenant, hook_id, channel, ts, shown, due_at, tries, reminded, error

-- name: delete_orphan_cards
delete from slack_card where not exists (select 1 from approval as a where a.run_id = slack_card.run_id and a.no = slack_card.no)
returning run_id, no, tenant, hook_id, channel, ts, shown, due_at, tries, reminded, error
