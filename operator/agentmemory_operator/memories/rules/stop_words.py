"""Stop words by language: for questions to agents with the keyword language `auto`, and to recognise English."""

from collections.abc import Mapping

STOP_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "english": "a about after all am an and any are as at be been before but by can could d did do does for from "
        "get had has have he her him his how i if in into is it its ll m me my no not of off on or our out "
        "re s she should so some t than that the their them then there these they this those to up us ve "
        "was we were what when where which while who whose why will with would you your",
        "german": "aber alle als am an auch auf aus bei bin bis da das dass dein deine dem den der des dich die dir "
        "du ein eine einem einen einer eines er es euch für habe haben hast hat hatte ich ihm ihn ihr ihre "
        "ihrem ihren im in ist ja kann können mein meine mich mir mit muss müssen nach nicht noch nun oder "
        "sein seine sich sie sind so um und uns unser unsere unter vom von vor wann war waren warum was "
        "weil welche welchem welchen welcher welches wem wen wenn wer werden wie wir wird wo woher wohin "
        "wurde wurden zu zum zur über",
        "spanish": "a adónde al algo ante como con cuando cuál cuáles cuándo cuánto cuántos cómo de del desde donde "
        "dónde el ella ellas ellos en era es esa ese eso esta este esto está fue fueron ha han hasta hay "
        "la las le les lo los me mi mis muy más no nos nuestra nuestro o para pero por porque que quien "
        "quién quiénes qué se ser si sin sobre son su sus también te tiene tu tus un una unas uno unos y "
        "ya yo él",
        "french": "a ai après au aux avec c ce ces cet cette comment d dans de des du elle elles en est et eu il ils "
        "j je l la le les leur leurs lui m ma mais me mes mon même n ne nos notre nous on ont ou où par pas "
        "plus pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se ses si son sont "
        "sous sur t ta te tes toi ton tu un une vos votre vous y à être",
        "italian": "a ai al alla alle anche c che chi ci come con cosa da dal dalla dei del della delle di dove e gli "
        "ha hanno ho i il in io l la le lei li lo loro lui ma mi mia mio ne nei nel nella non o per perché "
        "più quale quali quando quanto questa questo se si sono su sua suo ti tu un una uno è",
        "portuguese": "a ao aos as até com como da das de dela dele do dos e ela ele eles em era essa esse esta este "
        "está eu foi há isso já lhe mais mas me meu minha muito na nas nem no nos não o onde os ou para "
        "pela pelo por porque quais qual quando que quem se sem seu sua são também te tem um uma você à "
        "é",
        "dutch": "aan al als bij dan dat de deze die dit door een en er had heb hebben heeft hem het hij hoe hun ik "
        "in is je kan maar me met mijn naar niet nog of om onder ons onze ook op over te tot uit van voor "
        "waar waarom wanneer was wat we welk welke werd wie wij zal ze zich zij zijn zo",
        "swedish": "att av de dem den det din där efter ej en ett från för ha han har hon hur i inte jag kan man med "
        "men min mitt mot när någon och om på sig sin ska som till under upp ut vad var varför vem vi vid "
        "vilka vilken är",
        "danish": "af at da de dem den der det din du efter en er et for fra ham han har hun hvad hvem hvilken hvor "
        "hvorfor hvornår i ikke jeg jo kan man med men min mod nå når og også om op på sig sin skal som til "
        "ud var ved vi",
        "turkish": "ama bana ben bir biz bu da daha de değil en gibi hangi her hiç ile için kadar ki kim mi mu mü mı "
        "ne neden nerede o onun sen siz var ve veya ya çok şu",
        "russian": "а без был была были было быть в вам вас во вот все всё вы где да для до его ее если есть еще ещё "
        "её же за и из или им их к как какая какие какой каком какую когда кого кому кто куда ли мне мой "
        "мы на над нам нас наш не него нет ни но ну о об он она они от откуда по под при с сколько со так "
        "там то тот ты у уже чего чем что чтобы эта эти это этот я",
        "greek": "ένα ένας έχει ή αλλά αν από για δεν είναι εγώ εκεί εσύ η θα κάτι και με μου μπορεί να ο οι ποια "
        "ποιο ποιοι ποιος που πού πρέπει πότε πώς σε στα στη στην στις στο στον τα τη την της τι τις το τον "
        "του τους των όπως όταν ότι όχι",
        "arabic": "أن أنا أو أي أين إذا إلى إن التي الذي بعد ثم حتى ذلك على عن عند في قبل قد كان كانت كل كم كيف لا "
        "لدى لديه لديها لم لماذا لن ما ماذا متى مع من منذ نحن هذا هذه هل هم هو هي و يا",
        "hebrew": "אבל או אותה אותו איזה איזו איך איפה אל אלה אם אני את אתה גם הוא היא היה הייתה הם זאת זה יש כי כל "
        "כמה כן לא לה לו לי למה מה מי מתי עד על עם של שלה שלו שלי",
        "hindi": "अब आप इस उस उसका उसकी उसके एक ऐसा और कब कर करता करती करते करना कहाँ का कि कितना कितने किन किस किसका "
        "किसकी किसके किसने किसे की कुछ के कैसे को कौन क्या क्यों जब जो तक तुम तो था थी थे दिया न नहीं ने पर "
        "भी मुझे में मेरा मेरी मैं यह या ये लिए लिया वह वे सा सी से हम हमारा हमें ही हुआ हुई हूँ है हैं हो "
        "होगा होता होती",
    }.items()
}
