import pytest
from reposync.scheduling import group_plan, group_follow
from tests.integration.scheduling.groups.test_any_history import *
from tests.integration.scheduling.groups.test_any_history import test_whatever_happens_to_projects_each_keeps_its_repository_and_its_index as t
del test_whatever_happens_to_projects_each_keeps_its_repository_and_its_index
async def nothing(self, group, report): return report
M={
 "settled": lambda m: m.setattr(group_follow.Follower,"settled",nothing),
 "owner": lambda m: m.setattr(group_plan.GroupView,"_owner",lambda self,path: self.group),
 "way": lambda m: m.setattr(group_plan.GroupView,"_in_the_way",lambda self,l: []),
 "ours": lambda m: m.setattr(group_follow,"is_paused_by_group",lambda row: row.paused_reason is not None),
}
@pytest.mark.parametrize("k",list(M))
def test_m(k,monkeypatch,tmp_path_factory,upgraded_sqlite_file,qdrant):
    M[k](monkeypatch)
    with pytest.raises(BaseException) as e:
        t(tmp_path_factory,upgraded_sqlite_file,qdrant)
    print(k,repr(e.value)[:200])
