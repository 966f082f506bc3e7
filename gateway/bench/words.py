"""Texts of a given length, drawn from a seed: common words, each one token for most vocabularies.

The same seed gives the same texts everywhere, and no two prompts share a beginning unless a load
asks for it.
"""

from random import Random

_WORDS = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book eye
    job word business issue side kind head house service friend father power hour game line end
    member law car city community name president team minute idea kid body information back parent
    face others level office door health person art war history party result change morning reason
    research girl guy moment air teacher force education foot boy age policy process music market
    sense nation plan college interest death experience effect use class control care field
    development role effort rate heart drug show leader light voice wife police mind price report
    decision son view relationship town road arm difference value building action season society
    tax director position player record paper space ground form event official matter center couple
    site project activity star table need court oil situation cost industry figure street image
    phone data picture practice piece land product doctor wall patient worker news test movie
    north love support technology step baby computer type attention film tree source organization
    hair look window culture chance brother energy period course summer hot cold red blue green
    white black small large long short new old good great high different early young important
    public bad same able best better certain clear common current easy final free full hard
    human local low main major national natural open past political possible private real recent
    serious simple single social special strong sure true whole wrong about after again against
    almost along already also although always among another any around ask away become before begin
    behind believe between both bring build buy call carry come consider continue could create cut
    down during each either enough even ever every expect explain fall far feel few find first
    follow from get give grow happen hear help here hold how however include into keep know later
    lead learn leave less let like list little live lose make many may mean meet might more most
    move much must near never next nothing now offer often once only other over own pay perhaps
    play provide put quite rather reach read really receive remain remember require return run say
    see seem sell send serve set several should since sit some something sometimes soon speak spend
    stand start stay still stop such suggest take talk teach tell than that their them then there
    these they think this those though thought three through today together too toward try turn
    two under understand until upon very wait walk want watch well what when where whether which
    while who why will win with within without wonder write yes yet
"""
WORDS = tuple(_WORDS.split())


def drawn(*names: object) -> Random:
    """Return the random numbers of a name: the same ones for the same words and numbers."""
    return Random(":".join(map(str, names)))  # noqa: S311 - loads are drawn, not secrets


def text(rng: Random, n_words: int) -> str:
    """Return a text of `n_words` words."""
    return " ".join(rng.choices(WORDS, k=n_words))
